"""What ``lfs`` prints, in the spellings of several releases."""

from __future__ import annotations

import pytest

from ezpz_elastic.checkpoint.lustre_text import (
    Layout,
    Quota,
    parse_df,
    parse_getstripe,
    parse_inodes,
    parse_project,
    parse_quota,
    parse_size,
)

TIB, GIB = 2**40, 2**30

# The seed's: Sunspot's file system, human readable, without mount points.
SUNSPOT = """
tegu-OST0000_UUID   581.4T  35.4T  540.2T   7% [OST:0]
tegu-OST0001_UUID   581.4T  30.8T  544.7T   6% [OST:1]
tegu-OST0002_UUID    25.2T  24.7T   254.7G 100% [OST:2]   <--
tegu-OST0003_UUID    25.2T  24.6T   398.0G  99% [OST:3]   <--
"""

# 2.12, raw: 1K blocks, an inactive target without a name, one that does not answer.
RAW = """UUID                   1K-blocks        Used   Available Use% Mounted on
lus-MDT0000_UUID        13631488     1258291    11534336  10% /mnt/lus[MDT:0]
lus-OST0000_UUID      1048576000   104857600   943718400  10% /mnt/lus[OST:0]
OST0001             : inactive device
lus-OST000a_UUID    : Resource temporarily unavailable
lus-OST000b_UUID      1048576000  1048576000           0 100% /mnt/lus[OST:11]

filesystem_summary:   2097152000  1153433600   943718400  55% /mnt/lus

"""

# 2.14 and later, -v: state letters behind the mount point; a target without numbers.
STATES = """UUID                       bytes        Used   Available Use% Mounted on
fs-MDT0000_UUID            13.0G        1.2G       11.0G  10% /fs[MDT:0] f
fs-OST0000_UUID             3.6T        2.9T      585.7G  84% /fs[OST:0] f
fs-OST0001_UUID             3.6T        3.1T      472.5G  87% /fs[OST:1] D
fs-OST0002_UUID             3.6T        3.0T      570.3G  84% /fs[OST:2] DR
fs-OST0003_UUID             3.6T        3.6T           0 100% /fs[OST:3] S
fs-OST0004_UUID             3.6T        1.0T        2.6T  28% /fs[OST:4] N
fs-OST0005_UUID                -           -           -    - /fs[OST:5]

filesystem_summary:        16.2T       13.8T        2.0T  88% /fs
"""


def test_df_of_the_seed_shows_which_targets_are_full() -> None:
    found = parse_df(SUNSPOT)
    assert [(ost.index, ost.active) for ost in found] == [(0, True), (1, True), (2, True), (3, True)]
    assert found[2].free == int(254.7 * GIB)
    assert found[0].total == int(581.4 * TIB)
    assert found[2].name == "tegu-OST0002_UUID"


def test_df_counts_kibibytes_and_keeps_targets_that_do_not_answer_as_inactive() -> None:
    found = {ost.index: ost for ost in parse_df(RAW)}
    assert sorted(found) == [0, 1, 10, 11]
    assert (found[0].free, found[0].active) == (943718400 * 1024, True)
    assert (found[1].active, found[10].active) == (False, False)
    assert found[11].free == 0


def test_state_letters_that_refuse_new_objects_make_a_target_inactive() -> None:
    assert {ost.index: ost.active for ost in parse_df(STATES)} == {
        0: True,
        1: True,
        2: False,
        3: False,
        4: False,
        5: False,
    }


def test_free_objects_come_from_df_i() -> None:
    text = (
        "UUID                      Inodes       IUsed       IFree IUse% Mounted on\n"
        "fs-MDT0000_UUID           932.2k      884.6k       47.6k   95% /fs[MDT:0]\n"
        "fs-OST0000_UUID           267520      179600       87920   67% /fs[OST:0]\n"
        "OST0003           : inactive device\n"
        "fs-OST0006_UUID           426100      426100           0  100% /fs[OST:6]\n"
    )
    assert parse_inodes(text) == {0: 87920, 6: 0}
    assert parse_df(RAW, {0: 5})[0].inodes_free == 5


@pytest.mark.parametrize("text", ["", "lfs df: /tmp is not on a Lustre filesystem\n", "\x00\xff garbage [OST:x]\n"])
def test_what_is_no_table_has_no_targets(text: str) -> None:
    assert parse_df(text) == ()


def test_getstripe_of_a_plain_file() -> None:
    text = (
        "/mnt/lus/file\nlmm_stripe_count:  2\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n"
        "lmm_layout_gen:    0\nlmm_stripe_offset: 1\n\tobdidx\t\t objid\t\t objid\t\t group\n"
        "\t     1\t             2\t          0x2\t             0\n"
        "\t    12\t             7\t          0x7\t   0x280000401\n\n"
    )
    assert parse_getstripe(text) == Layout(2, 1048576, (1, 12))


def test_getstripe_of_a_directory_in_one_line_and_in_several() -> None:
    old = "stripe_count:  1 stripe_size:   4194304 pattern:       0 stripe_offset: -1\n"
    new = (
        "/mnt/lus\n"
        "stripe_count:  -1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1 pool:          flash\n"
    )
    assert parse_getstripe(old) == Layout(1, 4194304)
    assert parse_getstripe(new) == Layout(-1, 1048576, (), "flash")


def test_a_progressive_layout_gives_its_last_pool_and_its_objects() -> None:
    text = """/lustre/fs/file
  lcm_layout_gen:    2
  lcm_entry_count:   2
    lcme_id:             1
    lcme_extent.e_end:   8388608
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_stripe_offset: 3
      lmm_pool:          performance
      lmm_objects:
      - 0: { l_ost_idx: 3, l_fid: [0x100030000:0x2:0x0] }
    lcme_id:             2
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_pool:          capacity
      lmm_objects:
      - 0: { l_ost_idx: 41, l_fid: [0x100290000:0x9:0x0] }
"""
    assert parse_getstripe(text) == Layout(1, 1048576, (3, 41), "capacity")


@pytest.mark.parametrize(
    "text",
    [
        "Disk quotas for usr ada (uid 1000):\n"
        "     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
        "       /mnt/lus  204800       0  307200       -     113       0       0       -\n",
        "Disk quotas for usr ada (uid 1000):\n"
        "      Filesystem    used  bquota  blimit  bgrace   files  iquota  ilimit  igrace\n"
        "/lus/a/rather/long/mount/point\n"
        "                    200M      0k    300M       -     113       0       0       -\n",
        "Disk quotas for usr ada (uid 1000):\n"
        "     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace\n"
        "       /mnt/lus  [204800]*      0  307200  6d23h59m   113       0       0       -\n",
    ],
    ids=["2.12", "2.16, wrapped, human readable", "over soft quota, inexact"],
)
def test_quota_in_several_spellings(text: str) -> None:
    assert parse_quota("user", text) == Quota("user", 200 << 20, 300 << 20)


def test_no_limit_is_no_limit() -> None:
    assert Quota("user", 5, 0).left is None
    assert Quota("user", 400, 300).left == 0
    assert parse_quota("group", "lfs: no quota for this group\n") is None


def test_project_ids() -> None:
    assert parse_project(" 1000 P /lus/project\n") == 1000
    assert parse_project("    0 - /lus/other\n") is None
    assert parse_project("") is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("10", 10240), ("1.5k", 1536), ("254.7G", int(254.7 * GIB)), ("2T", 2 * TIB), ("[20]", 20480), ("7*", 7168)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
