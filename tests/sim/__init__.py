"""A simulation: the real engine on a simulated kernel, with a scheduler that owns every step of every process.

`make sim` runs it, or `PYTHONPATH=tests python -m sim`; docs/simulation.md says how to read what it prints, and how to
add to it. The modules:

    kernel              the machine, and the environment that the engine gets
    world               one run: its actors, what may happen next, what checkers are told
    ours, foreign       programs for actors: the engine, and models of other implementations
    checkers            what must be true in every run
    scenes, workloads   which actors meet where; known holes
    search              who decides, many runs, and the steps of one that fails
"""
