"""The API as it describes itself: what each route takes and answers, in our words, made into one OpenAPI document."""
