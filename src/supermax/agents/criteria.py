from supermax.agents.agent import CLASSES, Agent

CRITERIA = Agent(
    name="criteria",
    aliases=("classification",),
    targets=(CLASSES,),
    metric="macro_f1",
    purpose="classifies a text",
)
