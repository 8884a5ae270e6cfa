"""The subcommands of the command line, one module each: arguments, and calls of the library.

Invariant: these modules decide nothing about models or rules. Modules that need torch are imported when a command runs,
so that commands that only read rules start quickly.
"""
