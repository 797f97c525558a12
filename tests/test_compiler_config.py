"""Settings, errors and logs: the layer every stage stands on."""

import pytest

from compiler import logs
from compiler.config import Config, config, from_environment
from compiler.errors import Location, Unsupported


def test_patch_restores_also_after_an_error():
    before = config.numerics
    with pytest.raises(ZeroDivisionError), config.patch(numerics="strict", verify=2):
        assert config.numerics == "strict" and config.verify == 2
        raise ZeroDivisionError
    assert config.numerics == before


def test_a_bad_patch_changes_nothing():
    with pytest.raises(ValueError, match="numerics"), config.patch({"verify": 1, "numerics": "sloppy"}):
        pass
    assert config.verify == 0


@pytest.mark.parametrize(
    "name, value, error",
    [("nonsense", 1, AttributeError), ("verify", 7, ValueError), ("fusion", 1, TypeError), ("threads", True, TypeError)],
)
def test_assignments_are_checked(name, value, error):
    with pytest.raises(error):
        setattr(Config(), name, value)


def test_environment_names():
    c = from_environment({"TT_NUMERICS": "strict", "TT_DYNAMIC": "true", "TT_ACTIVATION_MEMORY_BUDGET": "0.5"})
    assert (c.numerics, c.dynamic, c.activation_memory_budget) == ("strict", True, 0.5)
    with pytest.raises(ValueError, match="TT_VERIFY='x'"):
        from_environment({"TT_VERIFY": "x"})


def test_key_ignores_what_cannot_change_code():
    assert Config().key() == Config().replace({"debug_dir": "elsewhere", "verify": 2}).key()
    assert Config().key() != Config().replace({"numerics": "strict"}).key()


def test_every_setting_has_its_own_environment_name():
    text = Config().describe()
    names = [line.split("TT_")[1].split()[0] for line in text.splitlines()]
    assert len(set(names)) == len(names) == len(Config().__dataclass_fields__)


def test_an_error_points_at_the_users_line():
    e = Unsupported("TT0101", "data-dependent branch", "use torch.where", stack=[Location("m.py", 3, "f", "if x.sum():")])
    assert str(e).splitlines() == [
        "TT0101: data-dependent branch",
        "  hint: use torch.where",
        "",
        "from user code:",
        '  File "m.py", line 3, in f',
        "      if x.sum():",
    ]


def test_topics(capsys):
    logs.set_logs("all,-kernels")
    try:
        logs.log("graph", "a\nb")
        logs.log("kernels", "no")
        assert capsys.readouterr().err == "[graph] a\n[graph] b\n"
    finally:
        logs.set_logs("")
    with pytest.raises(ValueError, match="no topic 'grph'"):
        logs.set_logs("grph")


def test_stage_files_are_numbered(tmp_path):
    with config.patch(debug=True, debug_dir=str(tmp_path)), logs.collecting() as seen:
        assert logs.enabled("joint")
        first = logs.artifact("joint", "f<lambda>", "x = 1")
        second = logs.artifact("loops", "plan", "y = 2\n\n")
    assert first.read_text() == "x = 1\n" and second.read_text() == "y = 2\n"
    assert first.name.endswith("_joint_f_lambda_.py") and first.name < second.name
    assert [s[0] for s in seen] == ["joint", "loops"]
    assert not logs.enabled("joint")
