"""GPQA diamond with five solved questions in the prompt; the answer is read from "The correct answer is (X)".

DARE's prompt shows five questions of GPQA's authors, who ask that their examples are not put on line in plain text.
The five here are our own: of the same fields, with the same letters as answers, in the same form. The order of the
choices is OpenCompass's rotation, where DARE shuffles by a seed. So a score can be compared with DARE's, but documents
cannot.
"""

from opencompass.datasets import GPQADataset, GPQAEvaluator
from opencompass.openicl.icl_inferencer import GenInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate
from opencompass.openicl.icl_retriever import ZeroRetriever
from opencompass.utils.text_postprocessors import match_answer_pattern

gpqa_prompt = """\
Here are five questions that experts wrote, with their answers. Answer the last question in exactly the same form.

Question: In a large population that mates at random, a recessive disorder is seen in 1 of 10,000 newborns. About \
which share of the population are healthy carriers?
Choices:
(A) 1/10000
(B) 1/200
(C) 1/100
(D) 1/50
The correct answer is (D)

Question: 25 mL of 0.10 M acetic acid (pKa 4.76) are titrated with 0.10 M sodium hydroxide. What is the pH after \
12.5 mL of the base?
Choices:
(A) 4.76
(B) 7.00
(C) 8.73
(D) 2.88
The correct answer is (A)

Question: A particle is in the ground state of an infinitely deep one-dimensional well, with energy E. The walls are \
moved apart so slowly that the change is adiabatic, until the well is twice as wide. What is the energy of the \
particle now?
Choices:
(A) E/2
(B) E/4
(C) E
(D) 4E
The correct answer is (B)

Question: Each of these compounds is treated with sodium iodide in acetone. Which one is substituted fastest?
Choices:
(A) bromomethane
(B) 2-bromopropane
(C) 2-bromo-2-methylpropane
(D) bromobenzene
The correct answer is (A)

Question: The coding region of a messenger RNA, from the start codon to the stop codon with both included, has 300 \
nucleotides. How many amino acids does the chain have when it leaves the ribosome?
Choices:
(A) 100
(B) 101
(C) 99
(D) 300
The correct answer is (C)

Question: {question}
Choices:
(A) {A}
(B) {B}
(C) {C}
(D) {D}
Give the answer in the form 'The correct answer is (X)', where X is one of the letters A, B, C and D."""

gpqa_datasets = [
    {
        "abbr": "GPQA_diamond_fewshot",
        "type": GPQADataset,
        "path": "./data/gpqa/",
        "name": "gpqa_diamond.csv",
        "reader_cfg": {"input_columns": ["question", "A", "B", "C", "D"], "output_column": "answer"},
        "infer_cfg": {
            "prompt_template": {
                "type": PromptTemplate,
                "template": {"round": [{"role": "HUMAN", "prompt": gpqa_prompt}]},
            },
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": GenInferencer},
        },
        "eval_cfg": {
            "evaluator": {"type": GPQAEvaluator},
            "pred_postprocessor": {
                "type": match_answer_pattern,
                "answer_pattern": r"(?i)the correct answer is \(\s*([A-D])\s*\)",
            },
        },
    }
]
