"""The last exception in a worker's stderr, as one record."""

from __future__ import annotations

from pathlib import Path

from ezpz_elastic.observe.logs import last_error, last_lines

SIMPLE = """warning: something
Traceback (most recent call last):
  File "/u/train.py", line 10, in <module>
    main()
  File "/u/train.py", line 7, in main
    raise ValueError("batch 17 is empty")
ValueError: batch 17 is empty
"""


def test_type_message_and_frames(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SIMPLE)
    error = last_error(tmp_path / "err")
    assert error is not None
    assert (error.type, error.message, error.source) == ("ValueError", "batch 17 is empty", "stderr")
    assert error.frames == (("/u/train.py", 10, "<module>"), ("/u/train.py", 7, "main"))


def test_a_rank_prefix_and_escapes_do_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("".join(f"[rank3]: \x1b[31m{line}\x1b[0m\n" for line in SIMPLE.splitlines()))
    error = last_error(tmp_path / "err")
    assert error is not None
    assert (error.type, len(error.frames)) == ("ValueError", 2)


def test_of_a_chain_the_beginning_is_told(tmp_path: Path) -> None:
    for words in (
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ):
        text = SIMPLE + f"\n{words}\n\n" + SIMPLE.replace("ValueError: batch 17 is empty", "RuntimeError: later")
        (tmp_path / "err").write_text(text)
        error = last_error(tmp_path / "err")
        assert error is not None
        assert error.type == "ValueError"


def test_of_two_separate_tracebacks_the_last_is_told(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SIMPLE + "going on\n" + SIMPLE.replace("ValueError: batch", "KeyError: batch"))
    error = last_error(tmp_path / "err")
    assert error is not None
    assert error.type == "KeyError"


def test_a_groups_first_member_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(
        """  + Exception Group Traceback (most recent call last):
  |   File "/u/train.py", line 3, in <module>
  |     raise ExceptionGroup("many", errors)
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/u/a.py", line 1, in f
    |     g()
    | ValueError: first
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/u/b.py", line 1, in f
    |     g()
    | TypeError: second
    +------------------------------------
"""
    )
    error = last_error(tmp_path / "err")
    assert error is not None
    assert (error.type, error.message) == ("ValueError", "first")


def test_a_syntax_error_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(
        """Traceback (most recent call last):
  File "/u/train.py", line 1, in <module>
    import model
  File "/u/model.py", line 4
    def f(:
          ^
SyntaxError: invalid syntax
"""
    )
    error = last_error(tmp_path / "err")
    assert error is not None
    assert (error.type, error.frames[-1][:2]) == ("SyntaxError", ("/u/model.py", 4))


def test_an_exception_without_words_and_a_keyboard_interrupt(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(SIMPLE.replace("ValueError: batch 17 is empty", "KeyboardInterrupt"))
    error = last_error(tmp_path / "err")
    assert error is not None
    assert (error.type, error.message) == ("KeyboardInterrupt", "")


def test_no_log_and_no_traceback(tmp_path: Path) -> None:
    assert last_error(tmp_path / "none") is None
    assert last_lines(tmp_path / "none", 5) == ()
    (tmp_path / "err").write_text("all is well\nstep=1\n")
    assert last_error(tmp_path / "err") is None
    assert last_lines(tmp_path / "err", 1) == ("step=1",)
