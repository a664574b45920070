"""Every reader against damaged and hostile files: only errors of lmtool may come out."""
