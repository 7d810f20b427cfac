"""A simulation: the real engine on a simulated kernel, with a scheduler that owns every step of every process.

It needs the package `greenlet` (`pip install 'holdfast[sim]'`). `python -m holdfast.testing.sim` runs it; the page
docs/simulation.md says how to read what it prints, and how to add to it. The modules:

    kernel, events, base, files, process    the machine, and the environment that the engine gets
    actor, ours, foreign                    who takes steps: the engine, and models of other implementations
    world, choosers, search, footprint      one run, who decides in it, and the search through all of them
    checkers                                what must be true in every run
    scenes, situations, workloads           who meets where
    explore, campaign, trace                many runs, and the story of one that fails
"""
