"""The grammar of RocketMQ's SQL92 filters, as rules for lark.

NOT binds tightest, so `NOT a = 'x'` is `(NOT a) = 'x'`. Text after a complete expression is ignored, as in
RocketMQ: `parse` stops at the first token that cannot continue it.
Source:  spec semantics 9.2.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from tandemmq.protocol.sql92.nodes import Builder, Node
from tandemmq.protocol.sql92.values import SqlError

TOKENS_MAX: Final = 4_096

_RULES: Final = r"""
start: disjunction

disjunction: conjunction (_OR conjunction)*
conjunction: equality (_AND equality)*

?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null

?comparison: unary
    | comparison ">" unary -> greater
    | comparison ">=" unary -> greater_equal
    | comparison "<" unary -> less
    | comparison "<=" unary -> less_equal
    | comparison _CONTAINS STRING -> contains
    | comparison _NOT _CONTAINS STRING -> not_contains
    | comparison _STARTSWITH STRING -> starts_with
    | comparison _NOT _STARTSWITH STRING -> not_starts_with
    | comparison _ENDSWITH STRING -> ends_with
    | comparison _NOT _ENDSWITH STRING -> not_ends_with
    | comparison _BETWEEN unary _AND unary -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> in_list
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> not_in_list

?unary: primary
    | "+" unary -> plus
    | "-" unary -> minus
    | _NOT unary -> negation

?primary: "(" disjunction ")" -> group
    | STRING -> text
    | INTEGER -> integer
    | FLOAT -> float_number
    | _TRUE -> true
    | _FALSE -> false
    | _NULL -> null
    | NAME -> name

FLOAT.3: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER.2: /(?:0|[1-9][0-9]*)[lL]?/
STRING: /'(?:[^']|'')*'/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*/
%ignore /\/\*(?:[^*]|\*(?!\/))*\*\//
"""
_KEYWORDS: Final = (
    *("AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", "BETWEEN", "IN"),
    *("CONTAINS", "STARTSWITH", "ENDSWITH"),
)


@cache
def _parser() -> Lark:
    keywords = "".join(f"_{word}.4: /{word}(?![A-Za-z0-9_$])/i\n" for word in _KEYWORDS)
    return Lark(_RULES + keywords, parser="lalr", lexer="basic", transformer=Builder())


def parse(expression: str) -> Node:
    """Returns the expression's root, which evaluates to a boolean or NULL.

    Raises:  SqlError naming the position, counted from 1.
    """
    parser = _parser().parse_interactive(expression)
    count = 0
    last: Token | None = None
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):  # type: ignore[no-untyped-call]  # lark's
            count += 1
            if count > TOKENS_MAX:
                raise SqlError(f"the expression has more than {TOKENS_MAX} words and signs")
            last = token
            parser.feed_token(token)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise SqlError(
            f"at character {at + 1}: {expression[at : at + 16]!r} is not a word or sign of SQL92"
        ) from None
    except UnexpectedToken as error:
        at = error.token.start_pos or 0
        return _end(parser, last, f"at character {at + 1}: {expression[at : at + 16]!r} is not expected here")
    return _end(parser, last, f"the expression ends too early, after {expression[-16:]!r}")


def _end(parser: InteractiveParser, last: Token | None, fault: str) -> Node:
    """Completes the expression at this point.

    Raises:  SqlError with the fault if it is incomplete.
    """
    try:
        root: Node = parser.feed_eof(last)  # type: ignore[no-untyped-call]  # lark's
    except UnexpectedToken:
        raise SqlError(fault) from None
    return root
