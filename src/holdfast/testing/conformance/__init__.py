"""The conformance kit: does an implementation of a protocol keep to it, whatever language it is written in?

`python -m holdfast.testing.conformance --protocol sema -- CMD ARGS…` runs the record vectors and the scenarios of a
protocol against an implementation, through a command that its author writes (docs/conformance.md).

adapter.py     the command: started, spoken to line by line, ended whatever it does
dialects.py    lock files of each protocol, byte by byte; written here again on purpose, so that the kit does not ask
               holdfast's codecs whether holdfast's codecs are right
bench.py       scenarios, and the scene that each works with; the record vectors
holding.py foreign.py stale.py directories.py odd_paths.py contention.py    the scenarios
runner.py      runs them and reports the results
"""
