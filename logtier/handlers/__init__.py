"""One module per API: API_KEY, VERSIONS and handle(). `registry` lists them, `dispatcher` calls them."""
