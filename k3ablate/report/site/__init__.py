"""How does a reader see an experiment in a browser? One folder of static pages that needs no network and no server.

`write_site` writes it from a `SiteContent`: pictures drawn once per theme, tables that come as HTML, and the exhibits
that a reader can turn. The same content gives the same bytes. Nothing is fitted, counted or trained here.

    content.py    what is handed in, and which pages there are
    images.py     a picture as small files, light and dark
    charts.py     charts as Vega-Lite specifications, plain data
    cells.py      the numbers of every exhibit as a table, for those who do not see or turn it
    payloads.py   what the scripts read
    stack.py      where the cells of a stack of layers lie
    pages.py      from all of it to files
    templates/ assets/ vendor/   the pages, their looks and scripts, and the chart library
"""

from k3ablate.report.site.content import PAGES, Page, SiteContent, SiteTable
from k3ablate.report.site.pages import write_site

__all__ = ["PAGES", "Page", "SiteContent", "SiteTable", "write_site"]
