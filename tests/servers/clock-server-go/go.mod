module clockserver

go 1.19
