from supermax.agents.agent import ENTITIES, Agent

TOKEN_CLASSIFICATION = Agent(
    name="token-classification",
    targets=(ENTITIES,),
    metric="entity_f1",
    purpose="finds the entities of a text, such as names of persons and places",
    redsm5=False,
)
