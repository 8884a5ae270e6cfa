"""The subcommands, a module each: their arguments, and the wiring from these to the library.

Invariant: a module here decides nothing about models or rules. What needs torch is imported when a command runs, so
that reading rules does not wait for it.
"""
