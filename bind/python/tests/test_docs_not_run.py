"""Lists each block of the README, docs/start and docs/howto that no test runs, with the reason."""

from __future__ import annotations

import docs_blocks
import pytest
from docs_blocks import Block

NOT_RUN = [
    block for page in docs_blocks.pages() for block in docs_blocks.blocks(page) if "not run" in block.marks
]


@pytest.mark.parametrize("block", NOT_RUN, ids=[block.place for block in NOT_RUN])
def test_block_is_not_run(block: Block) -> None:
    pytest.skip(f"{block.place}: {block.marks['not run']}")
