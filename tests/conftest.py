"""What holds for all tests."""

from __future__ import annotations

import signal

# A runner that was started in the background ignores these two, and each program that a test starts would ignore them
# as well: a signal that is ignored stays ignored. Tests of Ctrl-C and of a lost terminal need what a terminal gives.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
