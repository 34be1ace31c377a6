from supermax.agents.agent import CLASSES, SPANS, Agent

JOINT = Agent(
    name="joint",
    targets=(CLASSES, SPANS),
    metric="macro_f1",
    purpose="classifies a text and finds spans in it, with two encoders whose outputs are fused",
    encoders=2,
)
