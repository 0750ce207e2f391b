"""``dare-bench ls tasks --harness opencompass``: names of OpenCompass's data-set configs."""

from __future__ import annotations

from fnmatch import fnmatch

from dare_bench.cli.plain import say, say_json


def list_configs(pattern: str | None, include_path: list[str], json: bool) -> None:
    """Prints the configs that fit ``pattern`` (a glob, or a part of the name), below the folder they stand in.

    Raises:
        UnknownNameError: no name fits; the message names the three closest.
    """
    from dare_bench.errors import unknown
    from dare_bench.harness.opencompass.catalog import KIND, ConfigCatalog

    catalogue = ConfigCatalog(include_path)
    found = [catalogue.entries[name] for name in catalogue.names()]
    if pattern is not None:
        wanted = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
        found = [config for config in found if fnmatch(config.name, wanted)]
        if not found:
            raise unknown(KIND, pattern, catalogue.names())
    found.sort(key=lambda config: (config.origin, config.folder, config.name))
    if json:
        keys = ("name", "folder", "origin", "path")
        rows = [{key: str(getattr(config, key)) for key in keys} for config in found]
        say_json(rows)
        return
    lines: list[str] = []
    above = None
    for config in found:
        place = config.origin if config.folder == "." else f"{config.origin}: {config.folder}"
        if place != above:
            lines.append(place)
            above = place
        lines.append(f"  {config.name}")
    say("\n".join(lines))
