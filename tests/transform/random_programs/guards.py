"""Choices among values of which those not taken are nan or infinite."""

from .lists import Lists
from .scope import group, indented

RISKY = [
    "np.sqrt({})",
    "np.log({})",
    "np.power({}, 1.5)",
    "np.arcsin({} + 0.7)",
    "np.log1p(3.0 * {})",
]
# nan is neither greater nor less, so these drop it
DROPPING = [
    "max(0.0, {})",
    "min(1.0, {})",
    "max(0.0, min(1.0, {}))",
    "min(2.0, max(-0.5, {}))",
    "max(-0.3, abs({}))",
]
DROPPING_ARRAYS = ["np.fmax(0.05, {})", "np.fmin({}, 0.9)", "np.fmax(np.fmin({}, 0.9), -0.4)"]


class Guards(Lists):
    """Writes chains of choices, at whose end a value is defined."""

    def risky(self, scope, base):
        """Something that is not defined for every number, and where it is."""
        text = self.pick(RISKY).format(base)
        if self.chance(1, 3):
            text = f"{group(self.atom(scope))} * {text}"
        return f"{text} ** 2" if self.chance(1, 4) else text

    def undefined_not_taken(self, scope):
        kind = self.weighted(
            conditional=3, extreme=3, branch=3, running=2, guard=2, chain=3, sums=2, masked=2
        )
        u, base = self.name("u"), self.name("u")
        lines = [f"{base} = {self.number(scope, 1)}"]
        risky = self.risky(scope, base)
        if kind == "extreme":
            lines.append(f"{u} = {self.pick(DROPPING).format(risky)}")
        elif kind == "conditional":
            other = self.pick(["0.0", f"-{base}", f"np.sqrt(-{base}) if {base} < -0.1 else 0.3"])
            lines.append(f"{u} = {risky} if {base} > 0.1 else {other}")
        elif kind == "branch":
            # computed on every way, used on one
            w = self.name("u")
            lines += [f"{w} = {risky}", f"{u} = {self.small(scope, 1)}"]
            lines += [f"if {base} > 0.1:", f"    {u} {self.pick(['=', '+=', '*='])} {w}"]
            if self.chance(1, 2):
                lines += ["else:", f"    {u} = {self.small(scope, 1)}"]
        elif kind == "guard":
            lines.append(f"{u} = abs({risky}) if {base} > 0.1 and {risky} < 2.0 else 0.0")
        elif kind == "running" and scope.vectors:
            array, e = self.pick(scope.vectors), self.name("e")
            inner = scope.inner()
            inner.floats += [e]
            value = self.risky(inner, e)
            start, update = self.pick(
                [
                    ("-np.inf", f"{u} = max({u}, {value})"),
                    ("np.inf", f"{u} = min({u}, {value})"),
                    ("0.0", f"{u} += {value} if {e} > 0.1 else 0.0"),
                    ("0.0", f"{u} += max(0.0, {value})"),
                ]
            )
            lines += [f"{u} = {start}", f"for {e} in {array}:", *indented([update])]
            if "inf" in start:
                lines.append(f"{u} = {u} if abs({u}) < 10.0 else {self.small(scope, 1)}")
        elif scope.vectors:
            lines += self.whole_choice(scope, kind, u)
        else:
            lines.append(f"{u} = {risky} if {base} > 0.1 else 0.0")
        scope.floats.append(u)
        lines.append(f"{u} = np.tanh({u})")
        return lines

    def whole_choice(self, scope, kind, u):
        """Lines that choose among the elements of arrays and add them up."""
        size, v, w = self.pick(scope.vectors.values()), self.name("v"), self.name("v")
        lines = [f"{v} = {self.vector(scope, size)}"]
        scope.vectors[v] = size
        risky = self.risky(scope, v)
        other = group(self.vector(scope, size, 0))
        if kind == "masked":
            chosen = self.pick(RISKY).format(f"{v}[{v} > 0.1]")
            lines += [f"{w} = np.zeros({size})", f"{w}[{v} > 0.1] = {chosen}"]
        elif kind == "sums":
            lines.append(f"{w} = {self.pick(DROPPING_ARRAYS).format(risky)}")
        else:
            last = self.pick([other, f"np.where({v} < -0.1, np.sqrt(-{v}), {other})"])
            lines.append(f"{w} = np.where({v} > 0.1, {risky}, {last})")
        scope.vectors[w] = size
        return [*lines, f"{u} = np.sum({w} * {other})"]
