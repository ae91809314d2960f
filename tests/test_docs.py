"""What is generated in the docs is what `results/` gives."""

import pytest

from sortnet.report.docs import PARTS, generated


@pytest.mark.parametrize("name", PARTS)
def test_pages_are_up_to_date(name: str) -> None:
    page, text = generated(name)
    assert page.read_text() == text, "run `make docs`"
