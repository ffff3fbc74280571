module raw-cost

go 1.21
