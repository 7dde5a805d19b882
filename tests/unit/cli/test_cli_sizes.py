import click
import pytest

from memexport.cli.sizes import Size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512KiB", 524_288),
        ("1.5 GiB", 1_610_612_736),
        ("2mb", 2_000_000),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "-1", "12XB", "GiB", "1,5MiB"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size"):
        Size().convert(text, None, None)


def test_convert_draws_the_lifetimes_that_were_asked_for(memexport_cli, recording, tmp_path) -> None:
    for options in (["--lifetimes", "0"], ["--no-compress"]):
        result = memexport_cli("convert", recording, "-o", "out.pftrace", "--force", *options)
        assert result.exit_code == 0, result.stderr
        assert (tmp_path / "out.pftrace").stat().st_size > 0


def test_an_option_that_the_format_does_not_have_is_wrong_usage(memexport_cli, recording, tmp_path) -> None:
    result = memexport_cli("convert", recording, "-o", "out.memx", "--no-compress")
    assert result.exit_code == 2
    assert "no option" in result.stderr
    assert not (tmp_path / "out.memx").exists()
