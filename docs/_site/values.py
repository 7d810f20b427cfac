"""Values as their callers see them: the fields are the parameters; what they mean is in the text of the class."""

from __future__ import annotations

from typing import Any

import griffe


class Values(griffe.Extension):
    """For subclasses of `holdfast.model.Value`, which type checkers, too, take for dataclasses."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if not any(str(base).rpartition(".")[2] == "Value" for base in cls.bases):
            return
        fields = [
            each
            for each in cls.members.values()
            if isinstance(each, griffe.Attribute)
            and "property" not in each.labels
            and each.annotation is not None
            and not each.name.startswith("_")
        ]
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for field in fields:
            parameters.append(
                griffe.Parameter(
                    field.name,
                    annotation=field.annotation,
                    kind=griffe.ParameterKind.positional_or_keyword,
                    default=field.value,
                )
            )
            if field.docstring is None:
                cls.del_member(field.name)
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))
