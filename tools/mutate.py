"""Change one thing in the source, and check whether a test detects it.

    python tools/mutate.py --count 150 --seed 0 --out tools/results/seed-0     a sample of all possible changes
    python tools/mutate.py --folders core parts --out …                        a sample of those in some folders
    python tools/mutate.py --named --out tools/results/named                   faults that were once not detected
    python tools/mutate.py --again tools/results/seed-0.json --out …           the survivors of an earlier run

A mutant is the source with one expression or statement replaced. It runs in a copy of the working tree, in its own
process, against the test files that concern its source file (`TESTS`), until one of them fails. A mutant that no test
detects is a survivor: either it changes nothing that matters, or a test is missing. The sample is drawn evenly over
folders and kinds of change, so that the many constants do not crowd out the few keys. Text, messages of errors, type
annotations, and lines about CUDA, which cannot be tested without a GPU, are left out. The kernels of norms run in
Triton's interpreter, if Triton is installed.

Writes OUT.json (all mutants) and OUT.md (counts, and the survivors with their lines before and after). Survivors that
need no test are listed with the reason in surviving_mutants.py.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import copy
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from named_mutants import NAMED
from surviving_mutants import SURVIVING

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "parts", "engine", "executors", "data", "measures", "flower")
# Kernels for a GPU, and its memory.
SKIPPED = {"executors/client_conv_kernels.py", "executors/allocator.py"}
INTERPRETED = "test_kernels_equal_pytorch_in_the_interpreter"

# The tests that concern a source file, the cheapest first: its own where it has some, or else those of its folder.
EXECUTORS = [f"tests/executors/test_executors.py::test_{name}" for name in
             ("padding_never_changes_a_result", "neither_chunks_nor_the_order_of_clients_matter",
              "what_padding_holds_is_never_looked_at", "a_clients_round_depends_on_nobody_else")]  # fmt: skip
WORKERS = ["tests/executors/test_executors.py::test_workers_give_the_same_bits",
           "tests/executors/test_executors.py::test_workers_carry_running_statistics"]  # fmt: skip
PARITY = [f"tests/flower/test_parity.py::test_equals_the_simulator[{name}-{{}}]" for name in
          ("fedavg", "scaffold", "fedsmoo", "fedscar", "local")]  # fmt: skip
SOME_PARTS = [f"tests/parts/test_{name}.py" for name in
              ("ascent", "normalised_averaging", "distillation", "smoo_family", "personal")]  # fmt: skip
RUNS = ["tests/engine/test_rounds.py", "tests/engine/test_buffers.py", "tests/engine/test_precision.py"]
OUR_OWN = "tests/test_mutants.py"  # written for mutants that survived
CORE = ["tests/core", "tests/test_vectors.py", OUR_OWN, *RUNS, "tests/parts/test_soundness.py",
        "tests/parts/test_personal.py", "tests/references"]  # fmt: skip
TESTS: dict[str, list[str]] = {
    "core": CORE,
    **{f"core/{name}.py": ["tests/core", "tests/test_settings.py", "tests/api/test_objectives.py",
                           "tests/api/test_own_model.py", "tests/api/test_inputs.py", *CORE[1:]] for name
       in ("errors", "inputs", "prediction", "task", "stacking", "metric", "ranges")},
    "core/hook_checks.py": ["tests/core", "tests/cli/test_own_parts.py", "tests/test_costs.py", OUR_OWN],
    "core/part_class_checks.py": ["tests/core", "tests/cli/test_own_parts.py", OUR_OWN],
    "core/server.py": [*CORE, "tests/trust/test_robust.py", "tests/trust/test_privacy.py"],
    "core/keyed.py": ["src/steppe/core", "tests/core", OUR_OWN, "tests/data/test_augment.py"],
    "core/cost.py": ["tests/test_costs.py", "tests/conformance/test_catalogue.py::test_cost_snapshot"],
    "core/noise.py": ["src/steppe/core/noise.py", "tests/trust/test_privacy.py"],
    "core/named_metrics.py": ["src/steppe/core/named_metrics.py", "tests/api/test_objectives.py"],
    "core/losses.py": ["src/steppe/core/losses.py", "tests/api/test_objectives.py"],
    "core/validate.py": ["tests/trust/test_validate.py", *RUNS, OUR_OWN],
    "parts": ["tests/test_vectors.py", *SOME_PARTS, OUR_OWN, "tests/parts/test_soundness.py",
              "tests/parts/test_cycles_and_mixes.py", "tests/references"],
    "parts/activation_norm.py": ["tests/parts/test_man.py"],
    "parts/robust.py": ["tests/trust/test_robust.py"],
    "parts/norm_bound.py": ["tests/trust/test_robust.py", "tests/trust/test_privacy.py"],
    "parts/proximal_ascent.py": ["tests/parts/test_ascent.py", "tests/parts/test_fedsol.py", OUR_OWN],
    **{f"parts/{name}.py": ["tests/test_vectors.py", "tests/parts/test_recent.py", "tests/parts/test_soundness.py",
                            "tests/references", OUR_OWN]
       for name in ("nesterov", "geometric_bias", "trajectory_teacher", "global_ascent", "relaxed_start", "swa",
                    "ema")},
    "parts/adamw.py": ["tests/api/test_run.py", OUR_OWN],
    "parts/differential_privacy.py": ["tests/trust/test_privacy.py"],
    "engine": ["tests/engine", OUR_OWN, "tests/measures/test_measures.py", "tests/api", "tests/runs/test_resume.py"],
    **{f"engine/{name}.py": ["tests/api/test_own_model.py", "tests/api/test_inputs.py", "tests/api/test_objectives.py",
                             "tests/models", "tests/engine", OUR_OWN] for name in ("model_checks", "batching_problem")},
    **{f"engine/{name}.py": ["tests/api", "tests/engine", "tests/test_costs.py", OUR_OWN] for name in
       ("read_call", "result", "optimisers", "traced_costs")},
    "engine/availability.py": ["tests/engine/test_availability.py", OUR_OWN],
    "engine/objectives.py": ["tests/api/test_objectives.py"],
    "engine/trackers.py": ["tests/engine/test_trackers.py"],
    "engine/privacy.py": ["tests/trust/test_privacy.py"],
    "engine/accountant.py": ["tests/trust/test_privacy.py"],
    "engine/quadratics.py": ["tests/test_vectors.py", "tests/parts/test_soundness.py",
                             "tests/parts/test_smoo_family.py", OUR_OWN],
    "executors": [*EXECUTORS, OUR_OWN],
    **{f"executors/{name}.py": ["tests/executors/test_captured.py", OUR_OWN] for name in ("captured", "timetable")},
    "executors/client_conv.py": [f"tests/executors/test_client_{name}.py" for name in ("conv", "norm", "attention")],
    "executors/workers.py": WORKERS,
    "executors/shared_pickle.py": ["tests/executors/test_executors.py", "tests/api/test_own_model.py"],
    **{f"executors/{name}.py": [f"tests/executors/test_{name}.py"] for name in
       ("client_norm", "client_attention", "fuse_pooling", "captured_forward")},
    "executors/fuse_norm.py": ["tests/executors/test_client_norm.py"],
    "executors/client_norm_kernels.py": [f"tests/executors/test_client_norm.py::{INTERPRETED}"],
    "data": ["tests/data/test_dataset.py", "tests/data/test_readers.py", OUR_OWN],
    "data/augment.py": ["tests/data/test_augment.py", OUR_OWN],
    "data/aligned_tests.py": ["tests/data/test_aligned_tests.py", OUR_OWN],
    "data/sampling.py": ["src/steppe/data/sampling.py", "tests/data/test_client_sampling.py"],
    "data/partition.py": ["tests/data/test_aligned_tests.py", "tests/data/test_partition.py", OUR_OWN,
                          "tests/api/test_own_partition.py"],
    "data/divide.py": ["tests/data/test_partition.py", "tests/api/test_own_partition.py"],
    "data/own_data.py": ["tests/api/test_own_data.py"],
    "data/npz.py": ["tests/data/test_readers.py", "tests/flatness"],
    "data/rules.py": [OUR_OWN, "tests/data/test_partition.py"],
    "data/dirichlet_rules.py": [OUR_OWN, "tests/data/test_partition.py"],
    "data/federation.py": [*EXECUTORS, OUR_OWN, *RUNS, "tests/api"],
    "data/plan.py": [*EXECUTORS, OUR_OWN, *RUNS, "tests/api"],
    "measures": ["tests/measures/test_measures.py", OUR_OWN],
    "flower": ["tests/flower/test_folder.py", *PARITY, "tests/flower/test_faults_in_memory.py",
               "tests/flower/test_bad_nodes.py"],
    "flower/roll_call.py": ["tests/flower/test_faults_in_memory.py", "tests/flower/test_bad_nodes.py", *PARITY],
    "flower/nodes.py": ["tests/flower/test_faults_in_memory.py", "tests/flower/test_bad_nodes.py", *PARITY],
    **{f"flower/{name}.py": ["tests/flower/test_doors.py", "tests/flower/test_node_program.py"]
       for name in ("superlink", "supernode", "superexec", "own_user", "app_hash", "certificates")},
    "evaluate": [OUR_OWN, "tests/engine/test_rounds.py", "tests/parts/test_personal.py"],
    "flatness": [OUR_OWN, "tests/flatness"],
}  # fmt: skip

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
               ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn,
               ast.NotIn: ast.In}  # fmt: skip
ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
              ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}  # fmt: skip
# Calls with two arguments of the same kind, which are easily confused.
ALIKE = {"sub": (0, 1), "where": (1, 2), "ascend": (0, 1), "linspace": (0, 1), "lerp": (0, 1), "range": (0, 1),
         "fixed": (0, 1), "penalty": (0, 1), "Round": (1, 2), "Server": (1, 2), "play": (4, 5)}  # fmt: skip
# Keywords whose values have no effect on results, and calls that only format.
IDLE_KEYWORDS = {"strict", "non_blocking", "maxsize", "indent", "timeout", "display", "repr", "default_factory"}
IDLE_CALLS = {"round", "say", "tell", "format", "SteppeError", "CompositionError", "SettingError", "RunFailed"}


@dataclass
class Mutant:
    file: str  # below src/steppe
    kind: str
    line: int
    before: str  # whole lines
    after: str
    text: str = ""  # the whole file
    outcome: str = ""  # killed, survived, timeout
    by: str = ""  # the first test that failed
    seconds: float = 0.0  # of CPU time
    reason: str = ""  # why a survivor needs no test


def mutant(file: str, source: str, kind: str, node: ast.AST, new: str) -> Mutant | None:
    """Return the source with one node replaced by new text; None if that is not a valid program, or is about a GPU."""
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]  # type: ignore[attr-defined]
    changed = head + new.encode() + tail
    before = b"".join(lines[first : last + 1]).decode()
    text = b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    ours = "cuda" not in before and changed.decode() != before
    return Mutant(file, kind, first + 1, before.rstrip(), changed.decode().rstrip(), text) if ours else None


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield (kind, node, its new text) for everything below a node that is worth changing."""
    yield from changes_of(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not idle(child):
                yield from changes(child)


def idle(node: ast.AST) -> bool:
    """Return whether nothing below a node affects anything that a test should detect."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in IDLE_KEYWORDS
    return isinstance(node, ast.Call) and called(node) in IDLE_CALLS


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield the changes of this node itself."""

    def edited(kind: str, **fields: object) -> tuple[str, ast.AST, str]:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return kind, node, ast.unparse(new)

    match node:
        case ast.Compare(ops=[op], left=_) if type(op) in COMPARISONS:
            yield edited("comparison", ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not is_text(left, right):
            yield edited("arithmetic", op=ARITHMETIC[type(op)]())
            if isinstance(op, ast.Sub | ast.Div):
                yield edited("swapped arguments", left=right, right=left)
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield edited("arithmetic", op=ARITHMETIC[type(op)]())
            yield "removed statement", node, "pass"
        case ast.Constant(value=bool(v)):
            yield edited("constant", value=not v)
        case ast.Constant(value=int(v)) | ast.Constant(value=float(v)):
            yield edited("constant", value=v + 1)
            yield edited("constant", value=v - 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "dropped not", node, f"({ast.unparse(operand)})"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test, *_]):
            yield "condition", test, "True"
            yield "condition", test, "False"
        case ast.Expr(value=ast.Call() as call) if not idle(call):
            yield "removed statement", node, "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "removed statement", node, "pass"
    if isinstance(node, ast.Call):
        name, args = called(node), node.args
        if name == "key" and len(args) > 1:
            for i in range(len(args)):
                yield edited("dropped key", args=args[:i] + args[i + 1 :])
        if name in ALIKE and len(args) > max(ALIKE[name]):
            i, j = ALIKE[name]
            new = list(args)
            new[i], new[j] = new[j], new[i]
            yield edited("swapped arguments", args=new)


def is_text(*nodes: ast.AST) -> bool:
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str)) for n in nodes
    )


def sample(count: int, seed: int, folders: list[str]) -> list[Mutant]:
    """Sample evenly over folders and kinds: one of each in turn until there are enough."""
    groups: dict[tuple[str, str], list[tuple[str, str, str, ast.AST, str]]] = defaultdict(list)
    for folder in folders:
        for path in sorted((ROOT / "src/steppe" / folder).rglob("*.py")):
            file, source = path.relative_to(ROOT / "src/steppe").as_posix(), path.read_text()
            for kind, node, new in changes(ast.parse(source)) if file not in SKIPPED else ():
                groups[folder, kind].append((file, source, kind, node, new))
    chance = random.Random(seed)
    for group in groups.values():
        chance.shuffle(group)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(groups.values()):
        turn = [mutant(*group.pop()) for group in groups.values() if group]
        chosen += [each for each in turn if each is not None]
    return chosen[:count]


def named() -> list[Mutant]:
    """Return the committed list of faults: each is a text that occurs once in its file."""
    return [swapped(fault, file, before, after) for fault, file, before, after in NAMED]


def again(path: Path) -> list[Mutant]:
    """Return the survivors of an earlier run whose lines are still there."""
    old = [each for each in json.loads(path.read_text()) if each["outcome"] == "survived"]
    return [swapped(each["kind"], each["file"], each["before"], each["after"], each["line"]) for each in old]


def swapped(kind: str, file: str, before: str, after: str, line: int = 0) -> Mutant:
    """Return the mutant with this text replaced where it occurs; if it occurs several times, on this line."""
    source = (ROOT / "src/steppe" / file).read_text()
    places = [i for i in range(len(source)) if source.startswith(before, i)]
    chosen = [i for i in places if source[:i].count("\n") + 1 == line] if len(places) > 1 else places
    if len(chosen) != 1:
        return Mutant(file, kind, 0, before, after, outcome=f"not tried: its text is there {len(places)} times")
    text = source[: chosen[0]] + after + source[chosen[0] + len(before) :]
    return Mutant(file, kind, source[: chosen[0]].count("\n") + 1, before, after, text)


def tests_for(file: str) -> list[str]:
    wanted = TESTS.get(file) or TESTS[file.split("/")[0]]
    return [test for test in wanted if (ROOT / test.split("::")[0]).exists()]


class FirstFailure:
    """A pytest plugin that writes down which test failed first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: object) -> None:
        if report.failed and not self.path.exists():  # type: ignore[attr-defined]
            self.path.write_text(report.nodeid)  # type: ignore[attr-defined]

    pytest_collectreport = pytest_runtest_logreport


def child(tree: Path, tests: list[str], limit: int) -> None:
    """Run tests in a process that has imported nothing but torch, whose import takes longer than most tests."""
    import pytest

    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(tree / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src")]  # before an installed one
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    wanted = "not gpu and not browser" + ("" if tests[0].endswith(INTERPRETED) else " and not slow")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", wanted]
    if not any(test.startswith("src") for test in tests):
        options += ["-o", "addopts="]  # no doctests
    os._exit(pytest.main([*options, *tests], plugins=[FirstFailure(tree / "first.txt")]))


def run(tree: Path, tests: list[str], limit: int) -> tuple[int | None, str, float]:
    """Return the exit code (None: it took too long), the first test that failed, and the CPU time."""
    for name in ("first.txt", "said.txt"):
        (tree / name).unlink(missing_ok=True)
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = get_context("fork").Process(target=child, args=(tree, tests, limit))
    process.start()
    process.join(5 * limit)  # for tests that wait forever; on a busy machine, wall-clock time means little
    code = None if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL) else process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also what the tests may have started
    process.join()
    by = (tree / "first.txt").read_text() if (tree / "first.txt").exists() else ""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, by, ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def judge(each: Mutant, tree: Path, limit: int) -> Mutant:
    """Run the tests on a mutant, then restore the tree."""
    path = tree / "src/steppe" / each.file
    original = path.read_text()
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink()  # children write none, so that no later mutant of this size finds it
    path.write_text(each.text)
    code, each.by, seconds = run(tree, tests_for(each.file), limit)
    path.write_text(original)
    each.seconds = round(seconds, 1)
    each.outcome = "timeout" if code is None else "survived" if code == 0 else "killed"
    if code not in (None, 0) and not each.by:
        each.by = f"exit code {code}"
    return each


def copied(to: Path) -> Path:
    """Make a compiled copy of the working tree."""
    to.mkdir()
    for part in ("src", "tests", "docs", "results", "examples", "benchmarks"):
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (each for each in ROOT.iterdir() if each.is_file() and each.name != ".git"):
        shutil.copy(file, to)
    compileall.compile_dir(to / "src", quiet=2)
    compileall.compile_dir(to / "tests", quiet=2)
    return to


def check_tests(mutants: list[Mutant], tree: Path) -> None:
    """Check that the tests pass without a mutant; otherwise every mutant would count as killed."""
    green = {tuple(tests_for(each.file)) for each in mutants if each.outcome == "survived"}
    for tests in {tuple(tests_for(each.file)) for each in mutants if each.text} - green:
        code, by, seconds = run(tree, list(tests), 1800)
        print(f"unchanged: {seconds:.0f} s for {' '.join(tests)}", flush=True)
        if code != 0:
            raise SystemExit(f"the tests fail without a mutant ({by}):\n{(tree / 'said.txt').read_text()[-3000:]}")


def work(share: list[tuple[int, Mutant]], tree: Path, limit: int, progress: Path) -> None:
    for place, each in share:
        judge(each, tree, limit)
        print(f"{each.outcome:8} {each.seconds:5.0f} s  {each.file}:{each.line} {each.kind}  {each.by}", flush=True)
        with progress.open("a") as file:
            file.write(json.dumps([place, each.outcome, each.by, each.seconds]) + "\n")


def read(progress: Path, mutants: list[Mutant]) -> None:
    """Take over the results that an interrupted run has found."""
    for line in progress.read_text().splitlines() if progress.exists() else ():
        place, *found = json.loads(line)
        mutants[place].outcome, mutants[place].by, mutants[place].seconds = found


def write(out: Path, mutants: list[Mutant], command: str) -> None:
    reasons = {(file, after): reason for file, after, reason in SURVIVING}
    for each in mutants:
        each.reason = "" if each.outcome == "killed" else reasons.get((each.file, each.after), "")
    rows = [{k: v for k, v in asdict(each).items() if k != "text"} for each in mutants]
    out.with_suffix(".json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    outcomes = sorted({each.outcome for each in mutants})
    lines = ["# Mutants", "", f"`{command}`", "", "| folder | " + " | ".join(outcomes) + " |",
             "|---" * (len(outcomes) + 1) + "|"]  # fmt: skip
    for folder in [*sorted({each.file.split("/")[0] for each in mutants}), ""]:
        here = [each.outcome for each in mutants if each.file.startswith(folder)]
        lines.append(f"| {folder or 'all'} | " + " | ".join(str(here.count(o)) for o in outcomes) + " |")
    lines += ["", "## Survivors", ""]
    for each in mutants:
        if each.outcome != "killed":
            lines += [f"`{each.file}:{each.line}` {each.kind} ({each.outcome}{each.reason and ': ' + each.reason})", "",
                      "```diff",
                      *(f"-{line}" for line in each.before.splitlines()),
                      *(f"+{line}" for line in each.after.splitlines()), "```", ""]  # fmt: skip
    out.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=200, help="seconds of CPU time for the tests of one mutant")
    parser.add_argument("--named", action="store_true", help="the committed list of faults instead of a sample")
    parser.add_argument("--again", type=Path, help="the survivors listed in this JSON file instead of a sample")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, metavar="FOLDER", help="sample in these alone")
    parser.add_argument("--out", type=Path, required=True, help="where to write, without a suffix")
    asked = parser.parse_args()
    if asked.named:
        mutants = named()
    else:
        mutants = again(asked.again) if asked.again else sample(asked.count, asked.seed, asked.folders)
    if find_spec("triton") is None:
        for each in mutants:
            each.outcome = "not tried: needs Triton" if each.file.endswith("_kernels.py") else each.outcome
    if asked.named:  # each has its own test; those of `flower` are next to its other tests
        TESTS.update({each.file: [OUR_OWN] for each in mutants if not each.file.startswith("flower/")})
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    progress = asked.out.with_suffix(".progress")  # of an interrupted run, which is continued
    progress.parent.mkdir(parents=True, exist_ok=True)
    read(progress, mutants)
    ready = [(place, each) for place, each in enumerate(mutants) if each.text and not each.outcome]
    with tempfile.TemporaryDirectory() as folder:
        trees = [copied(Path(folder) / f"tree-{job}") for job in range(asked.jobs)]
        for name in ("torch", "numpy", "pytest", "hypothesis", "pydantic", "typer"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        shares = [(ready[job :: asked.jobs], tree, asked.limit, progress) for job, tree in enumerate(trees)]
        workers = [get_context("fork").Process(target=work, args=share) for share in shares]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        read(progress, mutants)
        check_tests(mutants, trees[0])
    sampled = f"--count {asked.count} --seed {asked.seed}"
    if asked.folders != FOLDERS:
        sampled += f" --folders {' '.join(asked.folders)}"
    how = "--named" if asked.named else f"--again {asked.again}" if asked.again else sampled
    write(asked.out, mutants, f"python tools/mutate.py {how}")
    progress.unlink(missing_ok=True)  # there is none without mutants


if __name__ == "__main__":
    main()
