--[[
  What shows how an object stands: the same for a call about one and for a call about several.
  Packages give it stream(K) and group(K, name), which return what hw_stream_info and hw_group_info
  reply, or nil for no group; and queue(K), which returns what hw_queue_stats replies.
]]
local looks = {}
