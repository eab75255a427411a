-- The same request as loadgen's profile sends, for wrk.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"bench-model","messages":[{"role":"user","content":"[00000000-0000-4000-8000-000000000000][run:000000000000] arc bay cab dam ear fan gem hat ice jam key lab map nut oak pan"}],"stream":false,"max_tokens":16}'
