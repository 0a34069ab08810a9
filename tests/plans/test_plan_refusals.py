"""A plan that cannot run is refused before anything is stored, with every problem and its place."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import pytest

from holdfast import App, Draft, InvalidPlan, Plan, extend
from holdfast.plans import model
from holdfast.plans.checker import problems
from holdfast.plans.extensions import refusal


@dataclass
class Rows:
    rows: list[int]
    day: str


class Total(NamedTuple):
    cents: int


class Sum(NamedTuple):
    pence: int


@dataclass
class Tree:
    of: list[Tree]
    size: int = 0


@dataclass
class Leaves:
    of: list[Leaves]


@dataclass
class Bushes:
    of: list[Bushes]
    size: str = ""


def shop() -> App:
    app = App("shop", "memory:")

    @app.step
    async def extract(day: str) -> Rows:
        return Rows([1], day)

    @app.step
    async def clean(rows: list[int], strict: bool = False) -> list[str]:  # noqa: FBT002
        return [str(row) for row in rows if strict]

    @app.step
    async def pair() -> tuple[int, str]:
        return 1, "x"

    @app.step
    async def total() -> Total:
        return Total(1)

    @app.tool
    async def charge(cents: int) -> str:
        return str(cents)

    @app.job
    async def report(rows: list[str]) -> int:
        return len(rows)

    return app


def call(id: str, name: str, **args: Any) -> dict[str, Any]:
    return {"id": id, "kind": "call", "call": name, "args": args}


def ref(path: str) -> dict[str, str]:
    return {"$ref": path}


EXTRACT = call("extract", "extract", day="monday")
ROWS = [1, 2, 3]
NO_NODE = "$ref must name a node, without other keys"
AS_LITERAL = 'write a value that only looks like a reference as {"$literal": …}'

CASES: dict[str, tuple[list[Any], list[str]]] = {
    "a circle": (
        [
            call("a", "clean", rows=ref("b.rows")) | {"after": ["c"]},
            call("b", "extract", day="x") | {"after": ["a"]},
            call("c", "extract", day="x"),
        ],
        ["a: it depends on itself: a → b → a"],
    ),
    "a node that depends on itself": (
        [call("a", "extract", day="x") | {"after": ["a"]}],
        ["a: it depends on itself: a → a"],
    ),
    "an unknown step": (
        [call("a", "extrct", day="x")],
        ["a.call: there is no step or tool 'extrct'; did you mean 'extract'?"],
    ),
    "an unknown job": ([{"id": "a", "kind": "job", "job": "zzz"}], ["a.job: there is no job 'zzz'"]),
    "an unknown gate": ([EXTRACT | {"gate": "api"}], ["extract.gate: there is no gate 'api'"]),
    "a missing argument": ([call("a", "extract")], ["a.args.day: extract requires it, and it is missing"]),
    "an extra argument": (
        [call("a", "extract", day="x", dya="y")],
        ["a.args.dya: extract takes no such argument; did you mean 'day'?"],
    ),
    "a reference to no node": (
        [EXTRACT, call("b", "clean", rows=ref("extrac.rows"))],
        ["b.args.rows: extrac.rows refers to a node that does not exist; did you mean 'extract'?"],
    ),
    "a reference to no part": (
        [EXTRACT, call("b", "clean", rows=ref("extract.lines"))],
        ["b.args.rows: extract.lines refers to a part that Rows does not have"],
    ),
    "a reference to no input": (
        [call("a", "extract", day=ref("input.day"))],
        ["a.args.day: input.day refers to an input that does not exist"],
    ),
    "an item outside a map": (
        [call("a", "extract", day=ref("item"))],
        ["a.args.day: item is valid only in the arguments of a map"],
    ),
    "an order behind no node": ([EXTRACT | {"after": ["b"]}], ["extract.after: there is no node 'b'"]),
    "an id that occurs twice": ([EXTRACT, EXTRACT], ["extract: 2 nodes have this id; each needs its own"]),
    "an id that is none": (
        [call("a b", "extract", day="x")],
        ["'a b': an id must start with a letter or _, then letters, digits, - and _, 100 at most"],
    ),
    "an id that means something else": (
        [call("input", "extract", day="x")],
        ["input: references to input mean something else; give the node another id"],
    ),
    "a literal of another type": ([call("a", "charge", cents="5")], ["a.args.cents: Expected `int`, got `str`"]),
    "an output of another type": (
        [EXTRACT, call("b", "charge", cents=ref("extract.day"))],
        ["b.args.cents: extract.day has type str, and int is required"],
    ),
    "items of another type": (
        [{"id": "m", "kind": "map", "over": ROWS, "call": "clean", "args": {"rows": ref("index")}}],
        ["m.args.rows: index has type int, and list[int] is required"],
    ),
    "a map over no list": (
        [EXTRACT, {"id": "m", "kind": "map", "over": ref("extract.day"), "call": "charge", "args": {"cents": 1}}],
        ["m.over: must be a list, and extract.day has type str"],
    ),
    "a map over a literal that is no list": (
        [{"id": "m", "kind": "map", "over": 3, "call": "charge", "args": {"cents": 1}}],
        ["m.over: must be a list, or a reference to one, got 3"],
    ),
    "a map of nothing": ([{"id": "m", "kind": "map", "over": ROWS}], ["m: a map must have either a call or a job"]),
    "a map of nothing at once": (
        [{"id": "m", "kind": "map", "over": ROWS, "call": "charge", "args": {"cents": ref("item")}, "limit": 0}],
        ["m.limit: must be at least 1, got 0"],
    ),
    "doubt about a step": (
        [EXTRACT | {"on_doubt": "ask"}],
        ["extract.on_doubt: extract is a step, which may run again: only tools are in doubt"],
    ),
    "doubt that is no policy": (
        [call("a", "charge", cents=1) | {"on_doubt": "hope"}],
        ["a.on_doubt: must be one of ask, fail, retry, got 'hope'"],
    ),
    "retries below nothing": (
        [EXTRACT | {"retries": -1}],
        ["extract.retries: must be an integer, 0 or more, got -1"],
    ),
    "a timeout that is none": (
        [EXTRACT | {"timeout": "soon"}],
        ["extract.timeout: 'soon' is not a duration: use text such as '90s', '1h30m', '3d' or '250ms'"],
    ),
    "a sleep that is none": (
        [{"id": "s", "kind": "sleep", "duration": "x"}],
        ["s.duration: 'x' is not a duration: use text such as '90s', '1h30m', '3d' or '250ms'"],
    ),
    "a key of the engine's own": (
        [{"id": "w", "kind": "wait", "key": "holdfast:x"}],
        ["w.key: a key must be text and must not begin with holdfast:, got 'holdfast:x'"],
    ),
    "a case without a test": (
        [EXTRACT, {"id": "c", "kind": "choice", "value": ref("extract.day"), "cases": [{"then": ["extract2"]}]}],
        ["c.cases[0]: a case must have exactly one of equals, any_of, above and below",
         "c.cases: there is no node 'extract2'; did you mean 'extract'?"],
    ),
    "no node at all": (
        [{"id": "a", "kind": "dance"}, {"id": "b", "kind": "wait", "keys": "x"}, 5],
        ["nodes[0] (a).kind: unknown kind 'dance': use one of call, wait, sleep, job, map and choice",
         "nodes[1] (b): a wait has no field 'keys'; did you mean 'key'?",
         "nodes[2]: a node must be an object with an id and a kind, got 5"],
    ),
    "every field of a node that is none": (
        [{"kind": "call", "id": True, "arg": {}, "retries": "3", "gate": 5, "after": "b"},
         {"id": "b"}, {"kind": "cal"}, {"id": 3, "kind": None},
         {"id": "c", "kind": "map", "call": "clean", "args": []}],
        ["nodes[0].id: must be text, got true: YAML reads it that way; write it in quotes",
         "nodes[0]: a call has no field 'arg'; did you mean 'args'?",
         "nodes[0].retries: Expected `int | null`, got `str`",
         "nodes[0].gate: Expected `str | null`, got `int`",
         "nodes[0].after: Expected `array`, got `str`",
         "nodes[0]: a call needs a call, which is missing",
         "nodes[1] (b): kind is missing: one of call, wait, sleep, job, map and choice",
         "nodes[2].kind: unknown kind 'cal': use one of call, wait, sleep, job, map and choice; did you mean 'call'?",
         "nodes[2]: id is missing; it must be text",
         "nodes[3].kind: unknown kind nothing: use one of call, wait, sleep, job, map and choice",
         "nodes[3].id: must be text, got 3: YAML reads it that way; write it in quotes",
         "nodes[4] (c).args: Expected `object`, got `array`",
         "nodes[4] (c): a map needs an over, which is missing"],
    ),
    "a reference with something beside it": (
        [EXTRACT, call("b", "clean", rows={"$ref": "extract.rows", "y": 1}), call("c", "charge", cents={"$ref": 5})],
        [f"b.args.rows: {NO_NODE}, got {{'$ref': 'extract.rows', 'y': 1}}; {AS_LITERAL}",
         f"c.args.cents: {NO_NODE}, got {{'$ref': 5}}; {AS_LITERAL}"],
    ),
    "a literal with something beside it, inside a list": (
        [call("b", "clean", rows=[1, {"$literal": 1, "y": 1}])],
        [f"b.args.rows: $literal must have no other keys, got {{'$literal': 1, 'y': 1}}; {AS_LITERAL}"],
    ),
    "a place behind the end of a tuple": (
        [call("p", "pair"), call("b", "charge", cents=ref("p.2")), call("c", "charge", cents=ref("p.-2")),
         call("d", "charge", cents=ref("p.1"))],
        ["b.args.cents: p.2 refers to a part that tuple[int, str] does not have",
         "d.args.cents: p.1 has type str, and int is required"],
    ),
    "a name of a list's places": (
        [call("t", "total"), call("b", "charge", cents=ref("t.cents")), call("c", "charge", cents=ref("t.0"))],
        ["b.args.cents: t.cents refers to a part that Total does not have"],
    ),
    "everything at once": (
        [call("a", "extract"), call("a", "nothing"), call("b", "clean", rows=ref("zz"), more=1)],
        ["a: 2 nodes have this id; each needs its own", "a.args.day: extract requires it, and it is missing",
         "a.call: there is no step or tool 'nothing'",
         "b.args.rows: zz refers to a node that does not exist", "b.args.more: clean takes no such argument"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_run_is_refused_before_anything_is_stored(case: str) -> None:
    nodes, expected = CASES[case]
    app = shop()
    with pytest.raises(InvalidPlan) as refused:
        app.plan("etl", Plan.from_dict({"name": "etl", "nodes": nodes})).start()
    assert refused.value.problems == expected
    assert all(line in str(refused.value) for line in expected)
    assert app.list() == []
    app.close()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (5, "a plan must be an object with nodes, got 5"),
        (None, "a plan must be an object with nodes, got nothing"),
        ({}, "nodes: must be a list, got none"),
        ({"nodes": {}}, "nodes: must be a list, got an object"),
        ({"nodes": [], "policy": "hope"}, "plan.policy: Invalid enum value 'hope'"),
        ({"nodes": [], "colour": 1}, "plan: a plan has no field 'colour'"),
        ({"nodes": [], "limit": 0}, "limit: must be at least 1, got 0"),
        ({"nodes": [], "output": ref("a")}, "output: a refers to a node that does not exist"),
        (
            {"input": {"c": {"default": "5"}}, "nodes": [call("a", "charge", cents=ref("input.c"))]},
            "a.args.cents: the default of input.c does not fit: Expected `int`, got `str`",
        ),
        (
            {"input": {"c": {"default": {"e": 1}}}, "nodes": [call("a", "charge", cents=ref("input.c.d"))]},
            "a.args.cents: the default of input.c does not fit: there is no 'd' in an object with 'e'",
        ),
        (
            {"nodes": [], "input": {"a b": {}}},
            "input.'a b': a name must start with a letter or _, then letters, digits, - and _",
        ),
    ],
)
def test_a_plan_as_a_whole_is_refused_with_its_reason(data: Any, said: str) -> None:
    app = shop()
    with pytest.raises(InvalidPlan) as refused:
        app.plan("etl", Plan.from_dict(data)).start()
    assert refused.value.problems == [said]
    app.close()


def test_more_nodes_than_are_allowed_are_refused() -> None:
    nodes = [{"id": f"s{number}", "kind": "sleep", "duration": 0} for number in range(model.NODES_MAX + 1)]
    with pytest.raises(InvalidPlan, match="nodes: 10,001, and a plan may have 10,000"):
        Plan.from_dict({"nodes": nodes})
    made = Plan.from_dict({"nodes": nodes[:-1]})
    more = made.extended(Plan.from_dict({"nodes": nodes[-1:]}), "s0")
    assert problems(more, None) == ["nodes: 10,001, and a plan may have 10,000"]


def test_what_is_wrong_is_told_in_few_words_however_long_the_names_are_and_however_many() -> None:
    long = {"id": "x" * 100_000, "kind": "call", "call": "extract", "args": {f"a{n}": n for n in range(200)}}
    told = problems(Plan.from_dict({"nodes": [long]}), shop().names())
    assert (len(told), told[-1]) == (101, "and more: fix these first")
    assert max(map(len, told)) <= 2001
    with pytest.raises(InvalidPlan) as refused:
        Plan.from_dict({"nodes": [], **{f"field{n}": n for n in range(1000)}})
    assert len(refused.value.problems) == 101


def test_text_that_is_no_plan_is_refused() -> None:
    for text in ("{", "[1", "\udcff".encode(errors="surrogatepass")):
        with pytest.raises(InvalidPlan, match="not valid JSON"):
            Plan.from_json(text)
    for read in (Plan.from_json, Plan.from_yaml):
        with pytest.raises(InvalidPlan, match="a plan must be an object with nodes, got nothing"):
            read(" ")
    with pytest.raises(InvalidPlan, match="not valid YAML: line 4, column 3: expected <block end>"):
        Plan.from_yaml("nodes:\n - id: a\n   kind: call\n  call: extract\n")
    with pytest.raises(InvalidPlan, match="not valid YAML"):
        Plan.from_yaml("!!python/object/apply:os.system ['true']")
    for value in ("2024-13-45", "!!timestamp soon", "!!int ''", "!!float much", "!!bool perhaps"):
        with pytest.raises(InvalidPlan, match="not valid YAML: a value does not fit its form"):
            Plan.from_yaml(f"{{nodes: [], output: {value}}}")


def test_a_name_in_yaml_that_is_no_text_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidPlan) as refused:
        Plan.from_yaml("nodes: []\noutput: {1: a, yes: b, '2': c}\n")
    assert refused.value.problems == [
        "line 2, column 10: '1' is not text, as names in JSON are: put it in quotes",
        "line 2, column 16: 'yes' is not text, as names in JSON are: put it in quotes",
    ]


def test_a_name_that_is_there_twice_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidPlan) as refused:
        Plan.from_json(
            '{"nodes": [{"id": "a", "kind": "call", "call": "b", "args": {"n": 1, "n": 2}}], "limit": 1, "limit": 2}'
        )
    assert refused.value.problems == ["plan: 'limit' occurs twice", "nodes[0].args: 'n' occurs twice"]
    with pytest.raises(InvalidPlan) as refused:
        Plan.from_yaml("nodes:\n  - {id: a, kind: sleep, duration: 1, id: b}\nlimit: 1\nlimit: 2\n")
    assert refused.value.problems == [
        "line 4, column 1: 'limit' occurs twice",
        "line 2, column 39: 'id' occurs twice",
    ]


def test_merge_keys_and_sexagesimal_numbers_are_refused_with_their_place() -> None:
    bomb = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
    with pytest.raises(InvalidPlan) as refused:
        Plan.from_yaml(bomb)
    assert len(refused.value.problems) == 59
    assert "line 60, column 12: merge keys are not supported: write the fields out" in refused.value.problems
    for number in ("1:30", "190:20:30.15", "1" + ":59" * 2000 + ".5"):
        with pytest.raises(InvalidPlan, match=r"line 1, column 21: '1.* to the base 60 in YAML: put it in quotes"):
            Plan.from_yaml(f"{{nodes: [], output: {number}}}")


def test_a_part_whose_name_has_a_dot_is_refused_where_it_is_written() -> None:
    draft = Draft()
    raw = draft.call("extract")
    for key in ("a.b", "", None, 1.5, True):
        with pytest.raises(
            TypeError,
            match=r"extract: (a name in a reference must not contain a dot|a part must be a name or a number)",
        ):
            raw[key]  # type: ignore[index]
    assert repr(raw["a"][-1].b) == "<extract.a.-1.b>"


def test_an_id_that_a_draft_made_of_a_name_says_how_to_give_another() -> None:
    app = App("shop", "memory:")

    @app.step(name="shop/extract")
    async def extract() -> int:
        return 1

    draft = app.plan("p")
    draft.call(extract)
    draft.call(extract)
    draft.call(extract, id="good")
    rule = "an id must start with a letter or _, then letters, digits, - and _, 100 at most"
    said = f"{rule}; it was made from a name: pass id="
    assert problems(draft.plan(), app.names()) == [f"'shop/extract': {said}", f"'shop/extract_2': {said}"]
    app.close()


def test_nodes_are_not_added_to_an_entry_whose_plan_was_given_whole() -> None:
    app = shop()
    entry = app.plan("etl", {"nodes": [EXTRACT]})
    for add in (
        lambda: entry.call("charge", cents=1),
        lambda: entry.returns(1),
        lambda: entry.given(Draft()).wait("x"),
    ):
        with pytest.raises(TypeError, match="etl: it has a complete plan: add the nodes to that plan before"):
            add()
    assert [node.id for node in entry.plan().nodes] == ["extract"]
    app.close()


def test_a_plan_is_given_as_one_as_a_draft_or_as_an_object() -> None:
    app = shop()
    entry, draft = app.plan("etl"), Draft()
    draft.call("extract", day="monday")
    for one in (draft, draft.plan(), draft.plan().to_dict()):
        assert entry.given(one).plan() == extended(one) == draft.plan()
    nothing: list[Any] = [5, None, "etl.yaml", draft.input]
    for wrong in nothing:
        for give in (entry.given, extend):
            with pytest.raises(InvalidPlan, match="must be a Plan, a Draft, or an object with nodes, got "):
                give(wrong)
    with pytest.raises(InvalidPlan, match=r"nodes\[0\]: kind is missing"):
        extend({"nodes": [{}]})
    app.close()


def test_an_extension_is_not_refused_for_what_is_wrong_with_its_plan_under_other_code() -> None:
    app = shop()
    plan = Plan.from_dict({"nodes": [EXTRACT, call("old", "gone")]})
    assert problems(plan, app.names()), "the code has changed since it was begun"
    assert refusal(plan, {"nodes": [call("x", "charge", cents=1)]}, "extract", app.names()) is None
    refused = refusal(plan, {"nodes": [call("x", "gone")]}, "extract", app.names())
    many = Plan.from_dict({"nodes": [call(f"old{n}", "gone") for n in range(model.PROBLEMS_MAX + 1)]})
    assert refusal(many, {"nodes": [call("x", "gone")]}, "old0", app.names()) is not None, (
        "it is unknown which node has the problem"
    )
    said = "the extension of the plan has a problem, and nothing of it was added:"
    assert refused == f"{said}\nx.call: there is no step or tool 'gone'"
    app.close()


def extended(plan: Any) -> Plan:
    return Plan.from_dict(extend(plan).plan)


def test_every_field_of_a_plan_that_is_none_is_told_at_once() -> None:
    with pytest.raises(InvalidPlan) as refused:
        Plan.from_dict({"version": 2, "nodes": [], "policy": "stop", "limit": "ten", "colour": 1})
    assert refused.value.problems == [
        "plan.version: Invalid enum value 2",
        "plan.policy: Invalid enum value 'stop'",
        "plan.limit: Expected `int`, got `str`",
        "plan: a plan has no field 'colour'",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)) + "nodes: *a59\n",
        "nodes: &all [*all]\n",
    ],
    ids=["many", "circle"],
)
def test_anchors_that_unfold_into_more_than_can_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidPlan, match="its anchors unfold into more than 1,000,000 values"):
        Plan.from_yaml(text)


def test_optional_values_fit_only_where_they_are_taken() -> None:
    app = App("shop", "memory:")

    @app.step
    async def find() -> int | None:
        return None

    @app.step
    async def show(number: int | None) -> float:
        return float(number or 0)

    @app.step
    async def half(number: float) -> float:
        return number / 2

    good = app.plan("good")
    good.call(half, number=good.call(show, number=good.call(find)))
    assert problems(good.plan(), app.names()) == []
    bad = app.plan("bad")
    bad.call(half, number=bad.call(find))
    assert problems(bad.plan(), app.names()) == ["half.args.number: find has type int | none, and float is required"]
    app.close()


def test_types_are_compared_by_what_they_are_in_json() -> None:
    app = App("shop", "memory:")
    pairs: dict[str, tuple[Any, Any, bool]] = {
        "numbers": (int, Decimal, True),
        "truths": (bool, Decimal, False),
        "places": (Total, Sum, True),
        "nothing": (None, Literal["a", None], True),  # noqa: PYI061 - a literal of its own
        "trees": (Tree, Leaves, True),
        "other": (Tree, Bushes, False),
    }
    for name, (gives, takes, _) in pairs.items():

        def give() -> Any: ...

        def take(value: Any) -> None: ...

        give.__annotations__["return"] = gives
        take.__annotations__["value"] = takes
        app.step(name=f"give_{name}")(give)
        app.step(name=f"take_{name}")(take)
    for name, (_, _, fit) in pairs.items():
        draft = Draft()
        draft.call(f"take_{name}", value=draft.call(f"give_{name}"))
        assert (problems(draft.plan(), app.names()) == []) is fit, name
    app.close()


def test_a_draft_that_holds_what_no_file_could_is_refused_when_it_is_started() -> None:
    app = App("shop", "memory:")

    @app.step
    async def one() -> int:
        return 1

    draft = app.plan("p", limit="3", policy="hope")  # type: ignore[arg-type]
    draft.call(one, needs="some", retries="2")
    with pytest.raises(InvalidPlan) as refused:
        draft.start()
    assert refused.value.problems == [
        "plan.limit: Expected `int`, got `str`",
        "plan.policy: Invalid enum value 'hope'",
        "nodes[0] (one).needs: Invalid enum value 'some'",
        "nodes[0] (one).retries: Expected `int | null`, got `str`",
    ]
    app.close()


def test_json_that_nests_too_deep_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="not valid JSON"):
        Plan.from_json("[" * 100_000)


def test_references_of_a_map_and_of_cases_are_checked_as_others_are() -> None:
    app = App("shop", "memory:")

    @app.step
    async def rows() -> list[int]:
        return [1]

    @app.step
    async def show(value: int) -> int:
        return value

    def found(*nodes: dict[str, Any], **given: Any) -> list[str]:
        return problems(Plan.from_dict({"name": "p", "nodes": list(nodes), **given}), app.names())

    def mapped(over: Any, value: Any) -> dict[str, Any]:
        return {"id": "m", "kind": "map", "over": over, "call": "show", "args": {"value": value}}

    item, gives = {"$ref": "item"}, {"id": "rows", "kind": "call", "call": "rows"}
    assert found(mapped([1, 2], item)) == []
    assert found(mapped([1], {"$ref": "index"})) == []
    assert found(mapped([1, "a"], item)) == ["m.args.value: an item does not fit: Expected `int`, got `str`"]
    assert found(mapped([1], {"$ref": "index.x.y"})) == [
        "m.args.value: index.x.y refers to a part that int does not have"
    ]
    assert found(gives, mapped({"$ref": "rows"}, {"$ref": "item.x"})) == [
        "m.args.value: item.x refers to a part that int does not have"
    ]
    assert found(mapped({"$ref": "input.r"}, item), input={"r": {"default": 5}}) == [
        "m.over: the default of input.r does not fit: Expected `array`, got `int`"
    ]
    assert found(mapped({"$ref": "input.r"}, item), input={"r": {"default": [1]}}) == []
    choice = {
        "id": "c",
        "kind": "choice",
        "value": {"$ref": "rows"},
        "cases": [{"equals": {"$ref": "rows"}, "then": []}],
    }
    assert found(gives, choice) == [
        "c.cases[0].equals: a case compares with a literal value, and cannot contain a reference"
    ]
    app.close()
