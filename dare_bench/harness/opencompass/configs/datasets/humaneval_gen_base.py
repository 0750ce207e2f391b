"""HumanEval for base models: the prompt is the function's head and nothing else, and what follows the indented body is
cut off.
"""

from opencompass.datasets import HumanevalDataset, HumanEvalEvaluator, humaneval_internal_v2_postprocess
from opencompass.openicl.icl_inferencer import GenInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate
from opencompass.openicl.icl_retriever import ZeroRetriever

humaneval_datasets = [
    {
        "abbr": "openai_humaneval_base",
        "type": HumanevalDataset,
        "path": "opencompass/humaneval",
        "reader_cfg": {"input_columns": ["prompt"], "output_column": "task_id", "train_split": "test"},
        "infer_cfg": {
            "prompt_template": {
                "type": PromptTemplate,
                "template": {"round": [{"role": "HUMAN", "prompt": "{prompt}"}]},
            },
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": GenInferencer, "max_out_len": 512},
        },
        "eval_cfg": {
            "evaluator": {"type": HumanEvalEvaluator},
            "pred_role": "BOT",
            "k": [1, 10, 100],
            "pred_postprocessor": {"type": humaneval_internal_v2_postprocess},
        },
    }
]
