"""The conformance kit: does an implementation of a protocol keep to it, whatever language it is written in?

`python -m holdfast.testing.conformance --protocol sema -- CMD ARGS…` runs the record vectors and the scenarios of a
protocol against an implementation, which is spoken to through a command that its author writes (docs/conformance.md).

adapter.py     the command: started, spoken to line by line, ended whatever it does
dialects.py    what lock files of each protocol look like, byte by byte; written here again on purpose, so that the kit
               does not ask holdfast's codecs whether holdfast's codecs are right
bench.py       what a scenario is and works with; the record vectors
holding.py foreign.py stale.py directories.py odd_paths.py contention.py    the scenarios
runner.py      runs them and says what came of it
"""
