"""How much memory there is."""

from lmtool.compute.memory import machine_memory


def test_memory_is_the_lowest_limit_of_the_control_groups_above(tmp_path):
    whole = machine_memory(tmp_path)
    assert whole is not None
    assert whole > 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    inner = tmp_path / "sys/fs/cgroup/a/b"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    assert machine_memory(tmp_path) == whole
    (inner.parent / "memory.max").write_text("4096\n")
    assert machine_memory(tmp_path) == 4096
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/\n4:memory:/docker/x\n")
    assert machine_memory(tmp_path) == whole
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("8192\n")
    assert machine_memory(tmp_path) == 8192
