"""supermax.hyperparameter_search: a search with the Trainer of transformers, crash-proof.

    program:  Trainer ──detached()──▶ TrainerObjective ──supermax.optimize──▶ cells
    cell:     TrainerObjective ──▶ attached() ──▶ Attempt.run() ──▶ objective, model

Modules that import transformers at the top are imported in functions, since importing supermax
must not import it.
"""
