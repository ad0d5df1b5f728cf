"""The explorer: turn a model, a device and a load, and see memory, roofline and speed at once.

setting, state and formulas are pure: a Setting is checked, a State is computed from it by inferlab,
and each number comes with its formula. pictures draws a State; widget is the front end in a
notebook, server the one in a browser (`inferlab explore`).
"""

from labkit.explorer.setting import Setting
from labkit.explorer.state import State, compute
from labkit.explorer.widget import Explorer, explore

__all__ = ["Explorer", "Setting", "State", "compute", "explore"]
