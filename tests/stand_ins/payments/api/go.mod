module github.com/acme-corp/payments-api

go 1.19

require acme-corp.example/clock v1.4.0
