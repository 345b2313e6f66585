"""One module an API: API_KEY, VERSIONS and handle(). `registry` has them all, `dispatcher` calls them."""
