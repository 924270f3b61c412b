SELECT c.relname, c.oid FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname IN ('orders', 'strandline_ledger') AND c.relkind IN ('r', 'v') WHERE n.nspname = 'shop';

SELECT pipeline, table_name, stage, owner, made, epoch, number, fence, batch, rows_read, rows_inserted, rows_updated, rows_deleted, last_moved FROM "shop"."strandline_ledger" WHERE target = 'orders';

SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'shop' AND c.relname = 'orders';

SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, d.description, pg_get_expr(f.adbin, f.adrelid)
  FROM pg_attribute a
  LEFT JOIN pg_description d ON d.classoid = 1259 AND d.objoid = a.attrelid AND d.objsubid = a.attnum
  LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
 WHERE a.attrelid = 7 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum;

SELECT c.relname, d.description FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_description d ON d.classoid = 1259 AND d.objoid = c.oid AND d.objsubid = 0 WHERE c.relkind = 'r' AND n.nspname = 'shop' AND c.relname LIKE 'strandline_stage_%';

BEGIN;

SET statement_timeout TO 10000;

DROP TABLE IF EXISTS "shop"."strandline_stage_dead";

RESET statement_timeout;

COMMIT;

CREATE TABLE "shop"."strandline_stage_a_12345678" (c0 bigint, c1 character varying(65535), c2 timestamp without time zone);

COMMENT ON TABLE "shop"."strandline_stage_a_12345678" IS 'strandline ["shop", "orders", "load", "orders"]';

BEGIN;

COPY "shop"."strandline_stage_a_12345678" FROM 's3://lake/stage/shop/orders/data/000000000007-a/strandline_stage_a_12345678.redshift.json' IAM_ROLE 'arn:aws:iam::123456789012:role/strandline' FORMAT AS PARQUET MANIFEST;

COMMIT;

SELECT count(*), sum(CASE WHEN 1 = 0 THEN 1 ELSE 0 END), (max(c2) AT TIME ZONE 'UTC')::text FROM (SELECT c0 AS c0, c1 AS c1, c2 AT TIME ZONE 'UTC' AS c2 FROM "shop"."strandline_stage_a_12345678") s;

SELECT c.relname, c.oid FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname IN ('orders') AND c.relkind IN ('r', 'v') WHERE n.nspname = 'shop';

BEGIN;

LOCK TABLE "shop"."strandline_ledger";

UPDATE "shop"."strandline_ledger" SET epoch = 1, number = 7, fence = 1, batch = '{"attempt": "a", "epoch": 1, "high": "2026-11-15 08:07:00.120003", "kind": "timestamp", "low": "2026-11-15 08:06:00.120003", "number": 7, "store": "s", "watermark": "2026-11-15 08:07:00.120003"}', made = '7', rows_read = 3, last_moved = 'timestamp 2026-11-15 08:01:00', changed_at = getdate() WHERE target = 'orders' AND pipeline = 'shop' AND table_name = 'orders' AND stage = 'load' AND number = 6 AND epoch = 1 AND fence <= 1;

INSERT INTO "shop"."orders" ("id", "name", "at") SELECT s.c0, s.c1, s.c2 FROM (SELECT c0 AS c0, c1 AS c1, c2 AT TIME ZONE 'UTC' AS c2 FROM "shop"."strandline_stage_a_12345678") s WHERE 1 = 1;

UPDATE "shop"."strandline_ledger" SET rows_read = 3, rows_inserted = 1, rows_updated = 0, rows_deleted = 0 WHERE target = 'orders' AND pipeline = 'shop' AND table_name = 'orders' AND stage = 'load';

COMMIT;

BEGIN;

SET statement_timeout TO 10000;

DROP TABLE IF EXISTS "shop"."strandline_stage_a_12345678";

RESET statement_timeout;

COMMIT;

