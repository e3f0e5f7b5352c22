# Has the generators of random numbers in this process go on otherwise than those of
# the sandbox that its memory is a copy of. modules.py is put before it.

import contextlib


def reseed_tempfile(module):
    module._name_sequence = None  # is made again when the next name is drawn


# What there is to do for a module that is loaded. CPython does the first in each child
# of os.fork(), whether the program has seeded it or not.
RESEEDS = {
    "random": lambda module: module.seed(),
    "numpy.random": lambda module: module.seed(),
    "torch": lambda module: module.seed(),
    "_ssl": lambda module: module.RAND_add(os.urandom(48), 48),
    "tempfile": reseed_tempfile,
}


def reseed():
    for name, draw_anew in RESEEDS.items():
        if name in sys.modules:
            with contextlib.suppress(Exception):  # the user's own, of that name
                draw_anew(sys.modules[name])
