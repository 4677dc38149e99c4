"""The page about the files of a run's folder, with the tables that describe them.

A line of a table is `key  type  meaning`. Nested keys are joined by dots, `[]` is an entry of a list, and names in
angle brackets stand for any name. Tests compare the tables with the files of real runs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tools.docs.sentences import capitalise
from tools.docs.tables import make_table

HEAD = """# Files of a run

`steppe run --out FOLDER` and `steppe.run(out=FOLDER)` write one folder per run. A comparison or sweep has one
folder per point, and in it one such folder per seed (`seed-0`, `seed-1`, …). Every file is written under a
temporary name and renamed, except `rounds.jsonl`, which is appended to. JSON files have null where a number is not
finite. Read a folder with [`steppe.load`](api/run.md#steppe.load), or with any program that reads JSON and
safetensors.

"""

FILES = {
    "config.json": "The configuration, every key with its value; `steppe run --config` reads it.",
    "about.json": "What the configuration does not contain: parts, costs, model, data, loss, metrics, partition.",
    "versions.json": "Versions of software and hardware, which can explain a different result.",
    "partition.json": "Which samples each client holds; `partition = FILE` uses it in another run.",
    "rounds.jsonl": "One object per round and line, appended and flushed when the round ends.",
    "rounds.csv": "The same as a table, at the end of the run: nested keys are joined by dots, lists are left out.",
    "result.json": "The summary. It exists only if the run has finished.",
    "model.safetensors": "The final model as a state dict, without what is frozen.",
    "adapter/": "The same as files that peft loads, if the model is one of peft's.",
    "analysis.json": "Measures of the final model (`steppe analyze`); analysis-client-3.json has those of one "
                     "client's loss.",
    "analysis/": "Arrays of measures, such as landscapes and spectral densities, as .npz files.",
    "checkpoints/round-<number>/": "The last two checkpoints. A damaged one is renamed, and the earlier one is used.",
    "best/round-<number>/": "The server of the best round, with early stopping, in the form of a checkpoint.",
    "clients.bin": "The client states, if they are kept on disk (`store = \"disk\"`); checkpoints hold its index.",
    "curves.png": "Loss and main metric over the rounds.",
    "log.txt": "The messages of a run that belongs to a comparison or sweep.",
    "track.json": "The trackers' IDs of the run.",
    "tensorboard/": "TensorBoard's events, with `track = [\"tensorboard\"]`.",
    "wandb/": "Files of Weights & Biases, with `track = [\"wandb\"]`.",
    "refusals.json": "Of a federation: refused replies per client, and until which round a client is left out.",
    "status.json": "Of a federation: the last status of its server.",
    "server.log": "Of a federation: the server's messages, one object with time and text per line.",
    ".lock, server.lock": "Locked while a process writes to the folder, or a server runs in it.",
}  # fmt: skip

TABLES = {
    "rounds.jsonl": """
        round               int     number of the round, from 1
        lr                  float   learning rate of its first local step, to twelve digits
        clients             int     replies that were counted
        participants        ints    clients whose replies were counted; absent if participation is secret (dp)
        samples             ints    of a federation: their numbers of samples; absent if participation is secret
        steps               int     local steps of all clients that trained; absent if participation is secret
        train_loss          float   mean over clients of their mean loss during the round
        drift               float   mean over clients of the norm of w − x
        update_norm         float   norm of the change of the global model
        x_norm              float   norm of the global model
        server_norms.<state>    float   norm of each state of the server, by part and name
        client_norms.<state>    float   mean over clients of the norm of each of their states
        loss                float   loss on the test set, or on what `judged_on` names; absent without evaluation
        <metric>            float   each metric on the same samples
        by_class            floats  the main metric per class there; null for a class without samples
        validation_loss     float   loss on the validation data, if there are any
        validation_<metric>     float   each metric on the validation data
        seconds.train       float   time until all clients have trained
        seconds.all         float   time of the round with its evaluation
        seconds.measure     float   time of measures, not included in `seconds.all`
        measures.<name>     any     a measure that was due in this round
        sample              text    data on which measures were taken
        dropped             ints    sampled clients that never answered
        late                ints    clients whose replies came after the deadline
        simulated_seconds   float   simulated time of the round (key `speed`)
        refused.[].client   int     client whose reply was refused
        refused.[].why      text    reason
        epsilon             float   privacy spent so far (part dp); null if it is infinite
        delta               float   δ for which ε was computed
        nodes.asked         int     of a federation: clients that were sampled
        nodes.bytes_down    int     bytes per message to a node
        nodes.bytes_up      int     bytes per reply, on average
        nodes.training      float   seconds of the slowest client's training
        nodes.overhead      float   the remaining seconds of the round
        """,
    "result.json": """
        algorithm           text    name of the algorithm
        metric              text    name of the main metric
        rounds              int     rounds that were run
        model_of_round      int     round of the final model: the last, or the best with early stopping
        last                float   main metric of the final model; null without test data
        mean_of_last_ten    float   its mean over the last ten evaluations; over all, if there were fewer
        best                float   best value of all rounds on the samples it is evaluated on, for information only
        evaluations         int     rounds after which the model was evaluated; 0 if only the initial one was
        loss                float   loss of the final model
        metrics.<metric>.last               float   the same for each metric
        metrics.<metric>.mean_of_last_ten   float   mean over the last ten evaluations, or over all
        metrics.<metric>.best               float   best value
        metrics.<metric>.direction          text    whether higher or lower is better
        seconds             float   sum of all rounds' `seconds.all`
        executor            text    what trained the clients in the end: sequential, workers, batched, captured, nodes
        notes               texts   what the run said about itself, such as why clients were not batched
        missing             int     replies that were dropped or late
        refused             int     replies that were refused
        simulated_seconds   float   simulated time of all rounds
        personal.<epochs>.mean  float   mean over clients of their own models' metric, after this many epochs
        personal.<epochs>.std   float   standard deviation over clients
        epsilon             float   privacy spent (part dp)
        delta               float   δ for which ε was computed
        nodes.overhead_seconds  float   of a federation: mean of the rounds' `nodes.overhead`
        nodes.training_seconds  float   mean of the rounds' `nodes.training`
        nodes.bytes_down    int     mean bytes per message to a node
        nodes.bytes_up      int     mean bytes per reply
        nodes.samples.<client>  int     training samples of each client that took part; absent if that is secret (dp)
        nodes.table_down    int     `cost.bytes_down`, which tracing predicts
        nodes.table_up      int     `cost.bytes_up`
        nodes.missing       int     replies that never came
        nodes.refused       int     replies that were refused
        """,
    "about.json": """
        format              int     version of this file
        algorithm           text    name of the algorithm
        parts.[].part       text    name of a part, innermost first
        parts.[].type       text    its class
        parts.[].<setting>  any     its settings
        sources.<name>.file     text    your own code: the file
        sources.<name>.sha256   text    hash of the file, class or function
        cost.down           float   vectors of the model's size sent to a client per round
        cost.up             float   vectors that a client sends
        cost.kept           float   vectors that a client keeps between its rounds
        cost.server         float   vectors that the server keeps
        cost.bytes_down     int     bytes sent to a client
        cost.bytes_up       int     bytes that a client sends
        cost.bytes_kept     int     bytes that a client keeps
        cost.gradients      int     forward and backward passes per step
        cost.forwards       int     additional forward passes per step
        cost.flops          int     FLOPs of a step, of convolutions and matrix products
        parameters          int     number of trained parameters
        model.own           bool    whether the model is your own object
        model.type          text    its class
        model.structure     text    hash of its modules, shapes and types
        model.initial       text    hash of the initial parameters
        model.head          text    name of the module that is the head
        model.own_head      bool    whether the head was named by you
        model.name          text    name of a model of the library
        model.classes       int     its outputs
        model.shape         ints    shape of one input
        model.predict       text    your function that takes predictions out of the model's output
        model.base.tensors      int     what is frozen: its tensors
        model.base.parameters   int     its parameters
        model.base.hash         text    its hash
        data.own            bool    whether the data are your own object
        data.name           text    name of the data set
        data.train          int     training samples; null in a federation, whose nodes have them
        data.test           int     test samples
        data.classes        int     classes; null for regression and sequences
        data.hash           text    hash of all samples; of a federation: of a sample's form and the test data
        inputs.mean         floats  mean per channel that images are normalised by
        inputs.std          floats  standard deviation per channel
        loss.own            bool    whether the loss is your own function
        loss.type           text    its qualified name
        loss.name           text    name of a loss of the library
        loss.<setting>      any     its settings
        metric.<field>      any     the main metric: name, direction, percent
        metrics.[].name         text    each metric, the main one first
        metrics.[].direction    text    whether higher or lower is better
        metrics.[].percent      bool    whether it is a share
        partition.rule      text    rule of the partition
        partition.hash      text    hash of the samples' clients
        partition.by        text    what a label rule divided by instead of the labels, if given
        """,
    "versions.json": """
        steppe              text    version of Steppe
        python              text    version of Python
        device              text    device of the run
        hardware            text    name of the GPU, or kind of CPU
        threads             int     PyTorch's threads
        commit              text    git commit of the working directory; `+changes` if files differ
        <package>           text    version of torch, numpy, safetensors and pydantic
        """,
    "partition.json": """
        rule                text    rule of the partition
        seed                int     its seed
        hash                text    hash of the samples' clients
        samples             int     training samples that were divided
        held_out            ints    samples that were held out for validation; the others are numbered without them
        clients.[]          ints    indices of each client's training samples
        """,
    "analysis.json": """
        sample              text    data on which the measures were taken
        samples             int     largest number of examples requested
        seed                int     seed of the sample, probes and directions
        model               text    hash of model.safetensors; measures of another model are replaced
        measures.<name>     any     a measure with its uncertainty, or the name of the file with its arrays
        options.<name>      any     what else the measure depends on
        clients             ints    clients of the extra round, for measures of clients
        """,
    "checkpoints/round-<number>/manifest.json": """
        format              int     version of the checkpoint
        round               int     finished rounds
        parts.<part>        texts   names of the server's states, by part
        files.<file>        text    SHA-256 of each file
        notes.loss          float   early stopping: best validation loss so far
        notes.round         int     its round; 0 if there is none
        notes.since         int     evaluations since then
        digest              text    SHA-256 of this manifest
        """,
    "checkpoints/round-<number>/server.safetensors": """
        x                   tensor  global model, as a flat vector
        state/<part>/<name>     tensor  states of the server
        buffer/<name>       tensor  running statistics of batch norm
        """,
    "checkpoints/round-<number>/clients.safetensors": """
        <client>/<part>/<name>  tensor  states of each client; with `store = "disk"`, the index of clients.bin
        """,
    "status.json": """
        state               text    running, finished or failed
        pid                 int     process of the server
        time                float   seconds since 1970
        federation          text    its name, while it runs
        rounds              int     its rounds, while it runs
        why                 text    reason of a failure
        code                int     exit code of a failure
        """,
    "refusals.json": """
        times.<client>      int     refused replies since the client was last left out
        until.<client>      int     round until which the client is left out
        """,
}


class Key(NamedTuple):
    """A key of a file: its path, the kind of its value, and what it means."""

    path: str
    kind: str
    meaning: str


def read_table(text: str) -> list[Key]:
    """Return the keys that a table describes.

    >>> read_table(TABLES["partition.json"])[0]
    Key(path='rule', kind='text', meaning='rule of the partition')
    """
    return [Key(*re.split(r" {2,}", line.strip(), maxsplit=2)) for line in text.strip().splitlines()]


def make_page() -> str:
    """Return the page."""
    text = HEAD + make_table(["file", "content"], [[f"`{name}`", what] for name, what in FILES.items()]) + "\n"
    text += "\nA key with a dot is nested; `[]` is an entry of a list; `<name>` stands for any name.\n"
    for file, table in TABLES.items():
        text += (
            f"\n## {file.replace('<number>', '…')}\n\n{FILES.get(file, '')}\n\n{make_key_table(read_table(table))}\n"
        )
    return text


def make_key_table(keys: list[Key]) -> str:
    """Return the table of a file's or message's keys."""
    return make_table(["key", "type", "meaning"], [[f"`{key.path}`", key.kind, say(key.meaning)] for key in keys])


def say(meaning: str) -> str:
    """Write a description as a sentence.

    >>> say("norm of w − x")
    'Norm of w − x.'
    """
    return capitalise(meaning) + "."
