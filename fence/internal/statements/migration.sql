CREATE TABLE IF NOT EXISTS latchkey_fence (
	resource           TEXT   PRIMARY KEY,
	last_fencing_token BIGINT NOT NULL CHECK (last_fencing_token > 0)
);
