"""The messages between the server and the nodes. The documentation's page on them is generated from this file.

Each is a Flower message with named records. A table has one line `record.key  type  meaning` per entry; names in angle
brackets stand for any name. Tests compare the tables with the messages of a federation.
"""

TERMS = """
    name                text    name of the federation
    lost_state          text    what happens if a node has lost its client's state: refuse or fresh
    cost.<key>          any     traced costs of the algorithm, as in about.json
    config.<key>        any     configuration of the run, every key
    sample.<key>        any     form of a sample, the `[data]` table of federation.toml
"""

MESSAGES = {
    "query": ("The server asks a new node which client it is. Flower's message type is `query`.", """
        terms.terms         text    the federation's terms, as JSON (below)
        terms.fingerprint   text    hash of algorithm, layout and everything in the model that is not sent
        """),
    "reply to query": ("The node has read its data and built the same model and algorithm.", """
        facts.federation    text    name of the federation
        facts.client        int     number of the node's client
        facts.samples       int     its number of training samples
        facts.steppe        text    its version of Steppe
        facts.torch         text    its version of PyTorch
        """),
    "train": ("The server sends a round's work to each sampled client. Flower's message type is `train`.", """
        arrays.x                    array   global model, as a flat vector
        arrays.x0                   array   initial model, for a client without state, if it differs from `x`
        arrays.down/<part>/<name>   array   what a part broadcasts
        arrays.buffers/<name>       array   running statistics of batch norm
        terms.terms                 text    the federation's terms, as JSON (below)
        terms.fingerprint           text    hash of algorithm, layout and everything in the model that is not sent
        terms.round                 int     number of the round, from 0
        terms.lr                    float   learning rate of the round
        terms.counted               int     round of this client's last reply that was counted; −1 if there is none
        terms.mirrored              bool    whether the client must also send its state
        """),
    "reply to train": ("The client's update. Its state stays on the node.", """
        arrays.update               array   w − x, or what a part makes of it
        arrays.up/<part>/<name>     array   what a part uploads in addition
        arrays.buffers/<name>       array   running statistics after the round
        arrays.state/<part>/<name>  array   client's state, only if `mirrored` asks for it (FedScar)
        facts.federation            text    name of the federation
        facts.client                int     number of the client
        facts.round                 int     number of the round, from 0
        facts.fingerprint           text    the fingerprint that the server sent
        facts.samples               int     its number of training samples, which sets its weight
        facts.loss                  float   its mean loss during the round
        facts.drift                 float   norm of w − x
        facts.seconds               float   seconds of training
        """),
    "refusal": ("Sent instead of any reply: only a code, because a sentence could quote the node's files.", """
        refusal.code        text    one of the codes below
        """),
}  # fmt: skip
