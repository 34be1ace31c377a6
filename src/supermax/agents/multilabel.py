from supermax.agents.agent import LABEL_SETS, Agent

MULTILABEL = Agent(
    name="multilabel",
    targets=(LABEL_SETS,),
    metric="macro_f1",
    purpose="assigns any number of labels to a text",
    losses=("bce", "focal"),
    redsm5=False,
)
