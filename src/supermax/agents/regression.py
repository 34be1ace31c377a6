from supermax.agents.agent import NUMBERS, Agent

REGRESSION = Agent(
    name="regression",
    targets=(NUMBERS,),
    metric="spearman",
    purpose="predicts a number from a text",
    losses=("mse", "huber", "mae"),
    redsm5=False,
)
