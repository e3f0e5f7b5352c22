# Generated from sdk/VERSION. Do not edit.

__version__ = "0.1.0"
