from supermax.agents.agent import CLASSES, SPANS, Agent

SHARE = Agent(
    name="share",
    targets=(CLASSES, SPANS),
    metric="macro_f1",
    purpose="classifies a text and finds spans in it, with one encoder for both",
)
