from supermax.agents.agent import SPANS, Agent

EVIDENCE = Agent(
    name="evidence",
    aliases=("question-answering",),
    targets=(SPANS,),
    metric="token_f1",
    purpose="finds the span of a text that answers a question, or reports that there is none",
)
