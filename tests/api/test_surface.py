"""What `import steppe` shows."""

import inspect
import subprocess
import sys

import steppe


def test_dir_is_the_public_surface_and_all_of_it_can_be_had() -> None:
    assert sorted(dir(steppe)) == sorted([*steppe.__all__, "__version__"])
    for name in steppe.__all__:
        thing = getattr(steppe, name)
        assert inspect.getdoc(thing) or name == "Oracle", f"{name} has no docstring"
    homes = [name for names in steppe._HOMES.values() for name in names]
    assert sorted([*homes, *steppe._MODULES]) == sorted(steppe.__all__)


def test_the_package_is_typed_and_light_to_import() -> None:
    from importlib.resources import files

    assert (files("steppe") / "py.typed").is_file()
    code = "import sys, steppe; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
