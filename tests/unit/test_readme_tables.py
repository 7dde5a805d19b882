"""The table of formats in the README, made from the registry."""

from __future__ import annotations

import pytest
import readme_tables

from memexport import registry

MARKED = "# A readme\n\n<!-- formats -->\nold\n<!-- /formats -->\n\nThe rest.\n"


@pytest.fixture
def readme(tmp_path):
    """A README with an outdated table."""
    path = tmp_path / "README.md"
    path.write_text(MARKED)
    return path


def test_it_writes_every_format_between_the_markers_and_touches_nothing_else(readme):
    assert readme_tables.main([str(readme)]) == 0
    before, _, rest = readme.read_text().partition("<!-- formats -->")
    table, _, after = rest.partition("<!-- /formats -->")
    assert (before, after) == ("# A readme\n\n", "\n\nThe rest.\n")
    assert "old" not in table
    for format_ in registry.exporters():
        assert f"`{format_.name}`" in table


def test_a_check_fails_before_it_is_written_and_passes_after(readme, capsys):
    assert readme_tables.main(["--check", str(readme)]) == 1
    assert "tools/readme_tables.py" in capsys.readouterr().err
    assert readme.read_text() == MARKED
    readme_tables.main([str(readme)])
    assert readme_tables.main(["--check", str(readme)]) == 0


def test_writing_it_again_changes_nothing(readme):
    readme_tables.main([str(readme)])
    written = readme.read_text()
    assert readme_tables.main([str(readme)]) == 0
    assert readme.read_text() == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no markers\n", "<!-- formats --> must be there once, and is there 0 times"),
        ("<!-- formats -->\n", "<!-- /formats --> must be there once, and is there 0 times"),
        ("<!-- /formats --> <!-- formats -->", "stands before"),
        (MARKED * 2, "is there 2 times"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--check"]])
def test_a_readme_without_one_place_for_it_fails_and_says_why(readme, capsys, text, message, options):
    readme.write_text(text)
    assert readme_tables.main([*options, str(readme)]) == 1
    assert message in capsys.readouterr().err
    assert readme.read_text() == text
