"""Nodes with NVIDIA's own programs, on which all strategies are real."""

from functools import partial

import pytest

from worlds.node import MakeNode


@pytest.fixture
def make_node(make_node: MakeNode, needs_root: None, real_userspace: None) -> MakeNode:
    return partial(make_node, userspace="real")
