# Changes modules of other people once they are loaded: ADAPTED says which, and
# how. What comes after it has to define display().

import functools
import importlib.abc
import importlib.machinery
import os
import sys

KERNEL = os.getpid()


def adapt_images(module):
    """Shows an image of Pillow where code shows it, or saves it under a name."""
    save = module.Image.save

    def show(self, title=None):
        display(self)

    @functools.wraps(save)
    def save_and_show(self, fp, format=None, **params):
        save(self, fp, format, **params)
        # matplotlib saves its figures so, which are shown already. A process
        # that the kernel has forked has nobody to show anything to.
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if not isinstance(fp, str) or caller.startswith("matplotlib.") or os.getpid() != KERNEL:
            return
        try:
            display(self)
        except Exception as error:
            print(f"{fp} is saved, and cannot be shown: {error}", file=sys.stderr)

    module.Image.show, module.Image.save = show, save_and_show


ADAPTED = {"PIL.Image": adapt_images}


class Adapter(importlib.abc.MetaPathFinder):
    """Changes the modules of ADAPTED once they are loaded."""

    def find_spec(self, name, path, target=None):
        if name not in ADAPTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            ADAPTED[name](module)

        spec.loader.exec_module = exec_module
        return spec
