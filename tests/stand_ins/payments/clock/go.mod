module acme-corp.example/clock

go 1.19
