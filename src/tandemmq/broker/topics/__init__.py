"""Topics and groups: tables, automatic creation, requests that change them."""
