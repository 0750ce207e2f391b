"""What we replace or override in other packages, each with its reason and the version that it was checked with. A
function there that changes fails here: read it, see whether the reason holds, and write the new digest down."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
import textwrap
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import version

import pytest
from paths import ROOT
from require import need_package

from dare_bench.program import _syntax


@dataclass(frozen=True)
class Patch:
    """``where`` we do it, which function of the other package (``of``: module:name) it stands on, checked in the
    ``versions`` (package and numbers), ``why``, and the digest of that function's syntax."""

    where: str
    of: str
    versions: str
    why: str
    digest: str


LM_EVAL, TRANSFORMERS = "lm_eval 0.4.13", "transformers 5.23.0"
_TASK = "dare_bench/harness/lm_eval/scoring_limits.py"
_CODE = "dare_bench/harness/lm_eval/code_scoring.py"
_QUIET = "dare_bench/harness/lm_eval/source.py"
_BY_NAME = "dare_bench/harness/common/by_name.py"
_LOOP = "trainers/loop.py"

PATCHES = (
    Patch(
        "dare_bench/harness/lm_eval/lm.py",
        "lm_eval.utils:apply_template",
        LM_EVAL,
        "renders by utils.env, which we replace: task templates run in Jinja's sandbox; there is no hook",
        "9a63dbd084fa",
    ),
    Patch(
        _TASK,
        "lm_eval.api.task:ConfigurableTask.process_results",
        LM_EVAL,
        "replaced on each task: a scorer has a time limit and a process; lm-eval calls it without a hook",
        "31f577a7c6c1",
    ),
    Patch(
        _CODE,
        "lm_eval.api.task:ConfigurableTask.process_results",
        LM_EVAL,
        "replaced on each code task: its code_eval runs in the sandbox",
        "31f577a7c6c1",
    ),
    Patch(
        _TASK,
        "lm_eval.api.filter:FilterEnsemble.apply",
        LM_EVAL,
        "makes filters from .filters, which we replace: a filter has a time limit for each answer",
        "667af701bbed",
    ),
    Patch(
        _QUIET,
        "lm_eval.loggers.utils:add_env_info",
        LM_EVAL,
        "replaced: starts a dozen programs in the current folder to describe the machine; no switch",
        "968a2267bbbb",
    ),
    Patch(
        _QUIET,
        "lm_eval.loggers.utils:get_git_commit_hash",
        LM_EVAL,
        "replaced: runs git in the current folder; no switch",
        "47574da291b5",
    ),
    Patch(
        _QUIET,
        "lm_eval.api.task:Task.build_all_requests",
        LM_EVAL,
        "draws a bar by the module's tqdm, which we replace; no switch for this one",
        "cf457f592581",
    ),
    Patch(
        "dare_bench/harness/common/code_eval.py",
        "evaluate.loading:load",
        "evaluate 0.4.6",
        "replaced: loads code_eval as a script that runs the model's code here; ours runs it in the sandbox",
        "678e86e640cb",
    ),
    Patch(
        _BY_NAME,
        "evaluate.loading:evaluation_module_factory",
        "evaluate 0.4.6",
        "replaced: runs a script of the current folder or the hub; no switch",
        "69da68e3dc93",
    ),
    Patch(
        _BY_NAME,
        "datasets.load:dataset_module_factory",
        "datasets 3.6.0",
        "replaced: takes a folder of the current folder for the data set of the hub; no switch",
        "54ea5e237a35",
    ),
    Patch(
        _BY_NAME,
        "datasets.load:resolve_trust_remote_code",
        "datasets 3.6.0",
        "replaced: asks on the terminal whether to run a data set's script; we never run one",
        "22230902f911",
    ),
    Patch(
        _BY_NAME,
        "datasets.load:load_dataset",
        "datasets 3.6.0",
        "calls the replaced function by its global name",
        "8a2d3de6a2f2",
    ),
    Patch(
        "dare_bench/harness/opencompass/layout.py",
        "opencompass.utils.datasets:get_data_path",
        "opencompass 0.5.4",
        "calls download_dataset, which we replace: offline, a missing file is an error and no download",
        "02b2a6ff56b2",
    ),
    Patch(
        "dare_bench/harness/lm_eval/documents.py",
        "lm_eval.api.group:Group.__iter__",
        LM_EVAL,
        "iterates ._children, which we replace in a copy: a group without the tasks of failed documents",
        "89c5c4ab8aaa",
    ),
    Patch(
        "trainers/training_run.py",
        "transformers:TrainingArguments.n_gpu",
        TRANSFORMERS,
        "returns ._n_gpu, which we set: several GPUs are several processes, never DataParallel; no switch",
        "a7f49128a41e",
    ),
    Patch(
        "dare_bench/diffusion/lockstep.py",
        "torch.distributed.fsdp:FSDPModule._get_fsdp_state",
        "torch 2.13.0",
        "called: tells which modules are gathered together; there is no public name",
        "94b8ef8bc7c1",
    ),
    *(
        Patch(_LOOP, f"transformers:Trainer.{name}", TRANSFORMERS, why, digest)
        for name, why, digest in (
            (
                "create_accelerator_and_postprocess",
                "extended: FSDP on the CPU, and its policy for bfloat16",
                "b634b9e7c8d5",
            ),
            ("get_train_dataloader", "overridden: the numbers of the steps", "84a91f3355c2"),
            ("log", "extended: the metrics of the steps since the last entry", "c9863e66f7e4"),
            ("get_batch_samples", "overridden: a batch is a whole step, made by our source", "5e038122eec5"),
            ("floating_point_ops", "overridden: counts the tokens of one batch, which a step has not", "ce5fb166777b"),
            ("training_step", "overridden: the loss of a step in forwards of bounded size", "44f4db4913cd"),
            (
                "_get_grad_norm",
                "extended: a gradient that is not finite ends the training before the update",
                "b9e20df75a7a",
            ),
            ("_save", "overridden: a checkpoint in its family's format", "5249ac74e1c8"),
            (
                "_save_checkpoint",
                "extended: the state of our source; no pickle of the weights; counts and evaluations",
                "4ba82c1e7b5e",
            ),
            (
                "_load_from_checkpoint",
                "overridden to nothing: weights were read before the model was wrapped",
                "91c60351b168",
            ),
            ("_load_optimizer_and_scheduler", "extended: an error names the checkpoint", "13693d796588"),
            ("_load_rng_state", "extended: an error names the checkpoint", "bb0be3bdf2c8"),
            ("_load_scaler", "overridden to nothing: a pickle, which our precisions do not need", "7d8e718db5b3"),
        )
    ),
)


def digest_of(name: str) -> str:
    module, _, path = name.partition(":")
    function = reduce(getattr, path.split("."), importlib.import_module(module))
    function = function.fget if isinstance(function, property) else function
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))  # type: ignore[arg-type]
    return hashlib.sha256("\n".join(_syntax(tree)).encode()).hexdigest()[:12]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.where.rpartition('/')[2]} {patch.of}")
def test_what_we_patch_is_what_we_read(patch: Patch) -> None:
    package, *checked = patch.versions.replace(",", " ").split()
    need_package(package)
    found = digest_of(patch.of)
    assert found == patch.digest, (
        f"{patch.of} of {package} {version(package)} is not that of {', '.join(checked)}: read it for {patch.where}"
        f" ({patch.why}); if that holds, its digest is {found}"
    )


def test_nothing_is_patched_that_is_not_listed() -> None:
    """Methods of the Trainer, keywords of ``replaced``, and names of others that we set or call."""
    from transformers import Trainer

    from dare_bench.trainers.loop import Loop

    listed = {patch.of.partition("Trainer.")[2] for patch in PATCHES if patch.where == _LOOP}
    overridden = {name for name in vars(Loop) if hasattr(Trainer, name) and not name.startswith("__")}
    assert overridden - {"loss_is_scaled_for_ga"} == listed, "that flag is the Trainer's own setting"
    others = re.compile(r"\b_shared_state|utils\.env = |_get_fsdp_state|\._n_gpu = |\._children = ")
    for folder in ("dare_bench", "trainers", "model_adapters", "tasks"):
        for file in (ROOT / folder).rglob("*.py"):
            if file.resolve() != file:  # below a link of dare_bench
                continue
            name, text = str(file.relative_to(ROOT)), file.read_text()
            known = " ".join(f"{patch.of} {patch.why}" for patch in PATCHES if patch.where == name)
            assert known or not others.search(text), f"{name} replaces something that is not listed"
            for word in replaced_names(text):
                assert re.search(rf"\b{word}\b", known), f"{name} replaces {word}, which is not listed"


def replaced_names(text: str) -> set[str]:
    """The names that a source file replaces in others' modules; a logger of the standard library is none."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "replaced"]
    return {str(word.arg) for call in made for word in call.keywords if ast.unparse(call.args[0]) != "logger"}
